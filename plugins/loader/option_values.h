#pragma once

#include <shardrun/plugin.h>

#include <vector>

#include "core/options/options.h"

namespace shardrun::plugins {

/// The values in the form that crosses the border. It points into them.
[[nodiscard]] std::vector<sr_option_value> raw_options(const OptionValues& values);

}  // namespace shardrun::plugins
