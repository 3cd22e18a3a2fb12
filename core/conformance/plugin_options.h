#pragma once

#include <string>
#include <vector>

#include "core/options/options.h"

namespace shardrun::conformance {

/// Candidates for options with which a model or an engine may accept a small job: `given`, small numbers, and each
/// choice in turn.
[[nodiscard]] std::vector<OptionValues> small_options(const std::vector<OptionSpec>& specs, const OptionValues& given);

/// Parses the options among "key=value" settings. The other settings are sizes of data.
[[nodiscard]] OptionValues given_options(const std::vector<OptionSpec>& specs,
                                         const std::vector<std::string>& settings);

/// Checks what the host does not check when it opens a plugin: the help texts, the choices, and that another instance
/// declares the same options. Throws Failure.
void require_declared(const std::vector<OptionSpec>& options, const std::vector<OptionSpec>& of_another);

/// The extreme values that an option allows. A plugin must handle whatever a job file may contain.
[[nodiscard]] std::vector<OptionValue> extreme_values(const OptionSpec& option);

}  // namespace shardrun::conformance
