#pragma once

#include <cstdint>

#include "core/device/cpu/vec.h"
#include "core/device/device.h"
#include "core/device/threads.h"

/// Access to a kernel's operands, and how its work is split over threads.
namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

/// The least number of elements for a thread. With fewer, a second thread costs more time than it saves.
inline constexpr std::int64_t grain = 16384;

[[nodiscard]] inline std::int32_t* integers(const TensorView& tensor) noexcept {
  return static_cast<std::int32_t*>(tensor.data);
}

/// A pointer to the elements of a tensor of real numbers, of type `float*` or `Reals`.
template <typename Pointer>
[[nodiscard]] Pointer reals(const TensorView& tensor) noexcept;
template <>
[[nodiscard]] inline float* reals<float*>(const TensorView& tensor) noexcept {
  return static_cast<float*>(tensor.data);
}
template <>
[[nodiscard]] inline Reals reals<Reals>(const TensorView& tensor) noexcept {
  return {static_cast<std::byte*>(tensor.data), tensor.dtype == graph::DType::bf16};
}

/// Whether any operand or result is bfloat16.
[[nodiscard]] inline bool has_bfloats(const KernelCall& call) noexcept {
  bool found = false;
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    found |= call.inputs[i].dtype == graph::DType::bf16;
  }
  for (std::size_t o = 0; o < call.outputs.size(); ++o) {
    found |= call.outputs[o].dtype == graph::DType::bf16;
  }
  return found;
}

/// Calls one of two instances of a kernel, for floats or for any real types: `by_type<relu<float*>, relu<Reals>>`.
template <void (*on_floats)(const KernelCall&), void (*on_reals)(const KernelCall&)>
void by_type(const KernelCall& call) {
  has_bfloats(call) ? on_reals(call) : on_floats(call);
}

/// Product of the dimensions [first, last).
[[nodiscard]] inline std::int64_t extent(const TensorView& tensor, std::uint32_t first, std::uint32_t last) noexcept {
  std::int64_t product = 1;
  for (std::uint32_t d = first; d < last; ++d) {
    product *= tensor.shape[d];
  }
  return product;
}

/// A tensor as a matrix: the last dimension makes the columns, all others the rows.
[[nodiscard]] inline std::int64_t columns(const TensorView& tensor) noexcept {
  return extent(tensor, tensor.rank - 1, tensor.rank);
}
[[nodiscard]] inline std::int64_t rows(const TensorView& tensor) noexcept { return extent(tensor, 0, tensor.rank - 1); }

/// The least number of rows of `width` elements for a thread.
[[nodiscard]] inline std::int64_t row_grain(std::int64_t width) noexcept {
  return width >= grain ? 1 : grain / (width + 1) + 1;
}

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
