#pragma once

#include <shardrun/plugin.h>

#include <string_view>
#include <vector>

#include "plugins/loader/options.h"

namespace shardrun::plugins {

/// The options that an opened plugin declares, in its order. Throws Error{plugin} for an invalid one: a name that no
/// job file can hold or that occurs twice, an unknown type, a default outside its own bounds.
[[nodiscard]] std::vector<OptionSpec> declared_options(const sr_plugin& table, std::string_view plugin);

}  // namespace shardrun::plugins
