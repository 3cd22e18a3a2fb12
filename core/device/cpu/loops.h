#pragma once

#include <cstdint>
#include <vector>

#include "core/device/cpu/variant.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

/// A nest of loops over dimensions of a tensor: of each iteration, where its element lies.
struct Loops {
  /// Adds a loop around the others. One that continues the loop before it becomes part of it.
  void add_outer(std::int64_t size, std::int64_t stride) {
    if (size == 1) {
      return;
    }
    if (count > 0 && stride == sizes[count - 1] * strides[count - 1]) {
      sizes[count - 1] *= size;
      return;
    }
    sizes[count] = size;
    strides[count] = stride;
    ++count;
  }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t product = 1;
    for (int i = 0; i < count; ++i) {
      product *= sizes[i];
    }
    return product;
  }
  /// Of iteration `number`, in elements from the tensor's first.
  [[nodiscard]] std::int64_t offset(std::int64_t number) const {
    std::int64_t sum = 0;
    for (int i = 0; i + 1 < count; ++i) {
      sum += number % sizes[i] * strides[i];
      number /= sizes[i];
    }
    return count == 0 ? 0 : sum + number * strides[count - 1];
  }
  /// The innermost loop if its elements are consecutive, and without it the others.
  [[nodiscard]] std::int64_t take_consecutive() {
    if (count == 0 || strides[0] != 1) {
      return 1;
    }
    const std::int64_t size = sizes[0];
    --count;
    for (int i = 0; i < count; ++i) {
      sizes[i] = sizes[i + 1];
      strides[i] = strides[i + 1];
    }
    return size;
  }

  int count = 0;
  std::int64_t sizes[max_rank] = {};    ///< innermost first
  std::int64_t strides[max_rank] = {};  ///< in elements
};

/// Whether `dims` has dimension d.
[[nodiscard]] inline bool has_dimension(const std::vector<std::int64_t>& dims, std::uint32_t d) {
  const std::int64_t* data = dims.data();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (data[i] == static_cast<std::int64_t>(d)) {
      return true;
    }
  }
  return false;
}

/// The loops over the dimensions in `dims` (`chosen`), and over the others.
struct TwoLoops {
  TwoLoops(const TensorView& tensor, const std::vector<std::int64_t>& dims) {
    std::int64_t stride = 1;
    for (std::uint32_t d = tensor.rank; d-- > 0;) {
      (has_dimension(dims, d) ? chosen : others).add_outer(tensor.shape[d], stride);
      stride *= tensor.shape[d];
    }
  }

  Loops chosen;
  Loops others;
};

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
