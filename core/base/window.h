#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace shardrun {

/// The indices of an operand's dimension that index i of a result reads: from ceil((i * stride + first) / divisor) to
/// floor((i * stride + last) / divisor). A convolution has divisor 1, and the gradient of its input stride 1. A shift
/// reads one index: first and last are its offset.
struct Window {
  std::int64_t stride = 1;
  std::int64_t divisor = 1;
  std::int64_t first = 0;
  std::int64_t last = 0;
  bool wraps = false;  ///< the operand is periodic; otherwise there is nothing past its ends

  auto operator<=>(const Window&) const = default;

  /// The window through which the gradient of the operand reads the gradient of the result.
  [[nodiscard]] constexpr Window transposed() const noexcept { return {divisor, stride, -last, -first, wraps}; }

  /// The indices [begin, end) of an operand of `size` that the result's indices [begin, end) read.
  /// REQUIRES: `wraps` is false.
  [[nodiscard]] constexpr std::pair<std::int64_t, std::int64_t> reads(std::int64_t begin, std::int64_t end,
                                                                      std::int64_t size) const noexcept {
    if (begin >= end) {
      return {0, 0};
    }
    const std::int64_t from = std::clamp<std::int64_t>(-floor_divide(-(begin * stride + first), divisor), 0, size);
    const std::int64_t to = std::clamp<std::int64_t>(floor_divide((end - 1) * stride + last, divisor) + 1, from, size);
    return {from, to};
  }

 private:
  [[nodiscard]] static constexpr std::int64_t floor_divide(std::int64_t a, std::int64_t b) noexcept {
    return a / b - (a % b < 0 ? 1 : 0);
  }
};

}  // namespace shardrun
