#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/on_device.h"
#include "core/base/window.h"
#include "core/graph/attributes.h"

namespace shardrun::graph {

/// How a convolution or a pool slides along one dimension of its operand: tap k of result index i, for k below `size`,
/// is the operand's index i * stride + k * dilation - low.
struct Sliding {
  std::int64_t size = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t low = 0;   ///< padding before the first index
  std::int64_t high = 0;  ///< padding after the last index

  /// The number of operand indices from the first tap to the last, both included.
  [[nodiscard]] std::int64_t reach() const noexcept { return (size - 1) * dilation + 1; }
  [[nodiscard]] std::int64_t result_size(std::int64_t operand) const noexcept {
    return (operand + low + high - reach()) / stride + 1;
  }
  /// The number of taps of result index i that are in an operand of this size, and not in the padding. REQUIRES:
  /// dilation 1.
  [[nodiscard]] SHARDRUN_ON_BOTH std::int64_t taps_within(std::int64_t i, std::int64_t operand) const noexcept {
    const std::int64_t begin = i * stride - low;
    return std::min(begin + size, operand) - std::max<std::int64_t>(begin, 0);
  }
  [[nodiscard]] Window window() const noexcept { return {.stride = stride, .first = -low, .last = reach() - 1 - low}; }
};

/// One Sliding for each dimension that slides, from the attributes `strides`, `padding` (low and high of each
/// dimension) and, if present, `dilation`. REQUIRES: these have entries for as many dimensions as `sizes`.
[[nodiscard]] inline std::vector<Sliding> sliding_of(const Attributes& attributes,
                                                     const std::vector<std::int64_t>& sizes) {
  std::vector<Sliding> slidings;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    slidings.push_back({.size = sizes[d],
                        .stride = attributes.integers("strides")[d],
                        .dilation = attributes.has("dilation") ? attributes.integers("dilation")[d] : 1,
                        .low = attributes.integers("padding")[2 * d],
                        .high = attributes.integers("padding")[2 * d + 1]});
  }
  return slidings;
}

}  // namespace shardrun::graph
