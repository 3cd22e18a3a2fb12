#pragma once

#include <string>
#include <vector>

#include "core/options/options.h"

namespace shardrun::conformance {

/// Options with which a model or an engine may accept a small job: `given`, small numbers, and each choice in turn.
[[nodiscard]] std::vector<OptionValues> small_options(const std::vector<OptionSpec>& specs, const OptionValues& given);

/// The options among "key=value"; the others are sizes of data.
[[nodiscard]] OptionValues given_options(const std::vector<OptionSpec>& specs,
                                         const std::vector<std::string>& settings);

/// Checks what the host does not check when it opens a plugin: help, choices, and that another instance declares the
/// same. Throws Failure.
void require_declared(const std::vector<OptionSpec>& options, const std::vector<OptionSpec>& of_another);

/// The extreme values that an option allows. A plugin has to handle whatever a job file may contain.
[[nodiscard]] std::vector<OptionValue> extreme_values(const OptionSpec& option);

}  // namespace shardrun::conformance
