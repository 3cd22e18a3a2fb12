#pragma once

#include <vector>

#include "core/options/options.h"

namespace shardrun::conformance {

/// Checks what the host does not check when it opens a plugin: help, choices, and that another instance declares the
/// same. Throws Failure.
void require_declared(const std::vector<OptionSpec>& options, const std::vector<OptionSpec>& of_another);

/// The extreme values that an option allows. A plugin has to handle whatever a job file may contain.
[[nodiscard]] std::vector<OptionValue> extreme_values(const OptionSpec& option);

}  // namespace shardrun::conformance
