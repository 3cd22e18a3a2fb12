#pragma once

#include <shardrun/model.h>
#include <shardrun/sdk/plugin.hpp>

#include <cstdint>
#include <vector>

#include "core/graph/attributes.h"
#include "core/options/options.h"

namespace shardrun::plugins {

/// Converts a plugin's array of attributes. Throws Error{plugin}.
[[nodiscard]] graph::Attributes attributes_from(const sr_attribute* attributes, std::uint32_t count,
                                                std::uint32_t stride);

/// Attributes in their C form, in the order in which they are declared. They point into `attributes`.
/// REQUIRES: these are the declared ones.
[[nodiscard]] std::vector<sr_attribute> raw_attributes(const std::vector<graph::AttributeSpec>& declared,
                                                       const graph::Attributes& attributes);

/// The values in their C form. It points into `values`.
[[nodiscard]] std::vector<sr_option_value> raw_options(const OptionValues& values);

[[nodiscard]] inline sdk::RawOptions raw_view(const std::vector<sr_option_value>& options) noexcept {
  return {options.data(), static_cast<std::uint32_t>(options.size()), sizeof(sr_option_value)};
}

}  // namespace shardrun::plugins
