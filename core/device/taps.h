#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/error.h"
#include "core/base/on_device.h"
#include "core/device/device.h"
#include "core/graph/sliding.h"

namespace shardrun::device {

/// Along one dimension, finds the operand's local index that a result's local index reads through one tap of a window.
struct Taps {
  std::int64_t size = 1;    ///< number of taps (elements of the window)
  std::int64_t count = 1;   ///< number of the result's indices
  std::int64_t held = 1;    ///< number of the operand's indices
  std::int64_t stride = 1;  ///< operand indices (times `divisor`) from one result index to the next
  std::int64_t step = 0;    ///< the same from one tap to the next
  std::int64_t base = 0;    ///< operand index (times `divisor`) of tap 0 of result index 0
  std::int64_t divisor = 1;

  /// The operand's index, or −1 if the tap is outside of the operand's shard or between its indices.
  [[nodiscard]] SHARDRUN_ON_BOTH std::int64_t at(std::int64_t index, std::int64_t tap) const noexcept {
    const std::int64_t scaled = index * stride + tap * step + base;
    const std::int64_t found = scaled < 0 || scaled % divisor != 0 ? -1 : scaled / divisor;
    return found < held ? found : -1;
  }
};

/// A tensor as planes of its last one or two dimensions. With one dimension, each plane is a single row.
struct Planes {
  Planes(const TensorView& view, std::size_t dimensions)
      : columns(view.shape[view.rank - 1]), rows(dimensions == 2 ? view.shape[view.rank - 2] : 1) {
    for (std::uint32_t d = 0; d < view.rank - dimensions; ++d) {
      count *= view.shape[d];
    }
  }
  [[nodiscard]] std::int64_t size() const noexcept { return rows * columns; }

  std::int64_t columns;
  std::int64_t rows;
  std::int64_t count = 1;
};

/// The number of taps by which an average pool divides, for each local row and column of its result.
struct TapCounts {
  /// `pooled`: a part of the pool's result, or of that result's gradient. `whole`: a part of the pool's operand.
  TapCounts(const std::vector<graph::Sliding>& windows, const TensorView& pooled, const TensorView& whole,
            const graph::Attributes& attributes)
      : padding(attributes.integer("counts_padding") != 0) {
    for (std::size_t d = 0; d < windows.size(); ++d) {
      const std::size_t at = 2 - windows.size() + d;
      slidings[at] = windows[d];
      operand[at] = whole.global[whole.rank - windows.size() + d];
      origin[at] = pooled.origin[pooled.rank - windows.size() + d];
    }
  }
  [[nodiscard]] SHARDRUN_ON_BOTH std::int64_t at(std::int64_t row, std::int64_t column) const noexcept {
    return padding ? slidings[0].size * slidings[1].size
                   : slidings[0].taps_within(origin[0] + row, operand[0]) *
                         slidings[1].taps_within(origin[1] + column, operand[1]);
  }

  bool padding;
  std::array<graph::Sliding, 2> slidings = {};
  std::array<std::int64_t, 2> operand = {1, 1};
  std::array<std::int64_t, 2> origin = {};
};

/// Throws Error{internal} unless the operand's shard holds all that the result's shard reads.
inline void require_held(const Window& window, const TensorView& operand, const TensorView& result,
                         std::uint32_t operand_dim, std::uint32_t result_dim) {
  const auto [begin, end] = window.reads(
      result.origin[result_dim], result.origin[result_dim] + result.shape[result_dim], operand.global[operand_dim]);
  const std::int64_t held = operand.origin[operand_dim];
  if (begin < end && (begin < held || end > held + operand.shape[operand_dim])) {
    throw Error(ErrorCode::internal, "the operand's shard does not hold an element that the result needs");
  }
}

/// The taps along the last one or two dimensions. One dimension takes the second place. Throws as require_held() does.
[[nodiscard]] inline std::array<Taps, 2> taps_of(const std::vector<graph::Sliding>& slidings, const TensorView& operand,
                                                 const TensorView& result) {
  std::array<Taps, 2> taps;
  for (std::size_t d = 0; d < slidings.size(); ++d) {
    const graph::Sliding& s = slidings[d];
    const auto from = static_cast<std::uint32_t>(operand.rank - slidings.size() + d);
    const auto to = static_cast<std::uint32_t>(result.rank - slidings.size() + d);
    require_held(s.window(), operand, result, from, to);
    taps[2 - slidings.size() + d] = {.size = s.size,
                                     .count = result.shape[to],
                                     .held = operand.shape[from],
                                     .stride = s.stride,
                                     .step = s.dilation,
                                     .base = result.origin[to] * s.stride - s.low - operand.origin[from]};
  }
  return taps;
}

/// The taps of the gradient of an op's operand, which is `result`. `operand` is the gradient of the op's result. Throws
/// as require_held() does.
[[nodiscard]] inline std::array<Taps, 2> transposed_taps(const std::vector<graph::Sliding>& slidings,
                                                         const TensorView& operand, const TensorView& result) {
  std::array<Taps, 2> taps;
  for (std::size_t d = 0; d < slidings.size(); ++d) {
    const graph::Sliding& s = slidings[d];
    const auto from = static_cast<std::uint32_t>(operand.rank - slidings.size() + d);
    const auto to = static_cast<std::uint32_t>(result.rank - slidings.size() + d);
    require_held(s.window().transposed(), operand, result, from, to);
    taps[2 - slidings.size() + d] = {.size = s.size,
                                     .count = result.shape[to],
                                     .held = operand.shape[from],
                                     .step = -s.dilation,
                                     .base = result.origin[to] + s.low - operand.origin[from] * s.stride,
                                     .divisor = s.stride};
  }
  return taps;
}

}  // namespace shardrun::device
