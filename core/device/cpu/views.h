#pragma once

#include <cstdint>

#include "core/device/cpu/variant.h"
#include "core/device/device.h"
#include "core/device/threads.h"

/// What all kernels know about their operands, and how work is split over threads.
namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

/// With fewer elements a second thread costs more than it saves.
inline constexpr std::int64_t grain = 16384;

[[nodiscard]] inline float* floats(const TensorView& tensor) noexcept { return static_cast<float*>(tensor.data); }
[[nodiscard]] inline std::int32_t* integers(const TensorView& tensor) noexcept {
  return static_cast<std::int32_t*>(tensor.data);
}

/// Product of the dimensions [first, last).
[[nodiscard]] inline std::int64_t extent(const TensorView& tensor, std::uint32_t first, std::uint32_t last) noexcept {
  std::int64_t product = 1;
  for (std::uint32_t d = first; d < last; ++d) {
    product *= tensor.shape[d];
  }
  return product;
}

/// A tensor as a matrix: its last dimension, and all others.
[[nodiscard]] inline std::int64_t columns(const TensorView& tensor) noexcept {
  return extent(tensor, tensor.rank - 1, tensor.rank);
}
[[nodiscard]] inline std::int64_t rows(const TensorView& tensor) noexcept { return extent(tensor, 0, tensor.rank - 1); }

/// Number of rows of `width` elements that make work for one thread.
[[nodiscard]] inline std::int64_t row_grain(std::int64_t width) noexcept {
  return width >= grain ? 1 : grain / (width + 1) + 1;
}

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
