#pragma once

#include <cmath>
#include <cstdint>

#include "core/graph/attributes.h"

namespace shardrun::device {

/// The angle in radians by which the op `rope` turns pair `i` of `half` per position. It is the attribute
/// `frequencies`[i], or 1 / base^(2i / head_dim) without that attribute, in float32 as in PyTorch.
[[nodiscard]] inline float rope_frequency(const graph::Attributes& attributes, std::int64_t i, std::int64_t half) {
  if (attributes.has("frequencies") && !attributes.reals("frequencies").empty()) {
    return static_cast<float>(attributes.reals("frequencies")[static_cast<std::size_t>(i)]);
  }
  const float share = static_cast<float>(2 * i) / static_cast<float>(2 * half);
  return 1.0F / static_cast<float>(std::pow(attributes.real("base"), static_cast<double>(share)));
}

/// The factor by which the op `rope` multiplies its result.
[[nodiscard]] inline float rope_factor(const graph::Attributes& attributes) {
  return attributes.has("factor") ? static_cast<float>(attributes.real("factor")) : 1.0F;
}

}  // namespace shardrun::device
