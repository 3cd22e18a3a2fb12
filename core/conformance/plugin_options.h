#pragma once

#include <string>
#include <vector>

#include "core/options/options.h"

namespace shardrun::conformance {

/// Values of options to try until a model or engine accepts a small job: `given` values, small numbers, and each choice
/// in turn.
[[nodiscard]] std::vector<OptionValues> small_options(const std::vector<OptionSpec>& specs, const OptionValues& given);

/// The options among "key=value" settings that are not sizes of data. Throws Error{job} if a key or value is wrong.
[[nodiscard]] OptionValues given_options(const std::vector<OptionSpec>& specs,
                                         const std::vector<std::string>& settings);

/// Checks properties that the host does not check when it opens a plugin: help texts, choices, and that another
/// instance declares the same options. Throws Failure.
void require_declared(const std::vector<OptionSpec>& options, const std::vector<OptionSpec>& of_another);

/// Unusual values that an option allows and a plugin must handle: smallest and largest numbers, odd texts, each choice.
[[nodiscard]] std::vector<OptionValue> extreme_values(const OptionSpec& option);

}  // namespace shardrun::conformance
