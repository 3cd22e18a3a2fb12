#pragma once

#include <shardrun/plugin.h>

#include <vector>

#include "plugins/loader/options.h"

namespace shardrun::plugins {

/// The values in their C form. It points into `values`.
[[nodiscard]] std::vector<sr_option_value> raw_options(const OptionValues& values);

}  // namespace shardrun::plugins
