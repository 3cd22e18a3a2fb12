#pragma once

#include <shardrun/model.h>

#include <cstdint>
#include <vector>

#include "core/graph/attributes.h"

namespace shardrun::plugins {

/// Converts a plugin's array of attributes. Throws Error{plugin}.
[[nodiscard]] graph::Attributes attributes_from(const sr_attribute* attributes, std::uint32_t count,
                                                std::uint32_t stride);

/// Attributes in their C form, in the order in which they are declared. They point into `attributes`.
/// REQUIRES: these are the declared ones.
[[nodiscard]] std::vector<sr_attribute> raw_attributes(const std::vector<graph::AttributeSpec>& declared,
                                                       const graph::Attributes& attributes);

}  // namespace shardrun::plugins
