#pragma once

#include <shardrun/sdk/plugin.hpp>

#include <vector>

#include "core/options/options.h"

namespace shardrun::plugins {

/// The values in their C form. It points into `values`.
[[nodiscard]] std::vector<sr_option_value> raw_options(const OptionValues& values);

[[nodiscard]] inline sdk::RawOptions raw_view(const std::vector<sr_option_value>& options) noexcept {
  return {options.data(), static_cast<std::uint32_t>(options.size()), sizeof(sr_option_value)};
}

}  // namespace shardrun::plugins
