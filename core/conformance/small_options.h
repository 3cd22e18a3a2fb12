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

}  // namespace shardrun::conformance
