#pragma once

#include <cstdint>
#include <span>

#include "core/device/cuda/values.h"

namespace shardrun::device::cuda {

/// a / b for numbers that are not negative. A 32-bit division takes a quarter of the time of a 64-bit one.
[[nodiscard]] SHARDRUN_ON_DEVICE inline std::int64_t quotient(std::int64_t a, std::int64_t b) {
  return (a | b) >> 32 == 0 ? static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b) : a / b;
}

/// A nest of loops over dimensions of several tensors. For each iteration it says where each tensor's element lies.
template <int tensors>
struct Loops {
  /// The place of an iteration's element in each tensor, in elements.
  struct Offsets {
    std::int64_t of[tensors];
  };

  /// Adds a loop around the others. It is merged with the loop inside it if the strides allow. Size 1 adds nothing.
  template <typename... Strides>
  void add_outer(std::int64_t size, Strides... tensor_strides) {
    const std::int64_t all[] = {tensor_strides...};
    if (size == 1) {
      return;
    }
    bool continues = count > 0;
    for (int t = 0; t < tensors && continues; ++t) {
      continues = all[t] == sizes[count - 1] * strides[t][count - 1];
    }
    if (continues) {
      sizes[count - 1] *= size;
      return;
    }
    sizes[count] = size;
    for (int t = 0; t < tensors; ++t) {
      strides[t][count] = all[t];
    }
    ++count;
  }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t product = 1;
    for (int i = 0; i < count; ++i) {
      product *= sizes[i];
    }
    return product;
  }
  /// The innermost loop's size if its elements are consecutive in tensor t, else 1.
  [[nodiscard]] std::int64_t consecutive(int t = 0) const { return count > 0 && strides[t][0] == 1 ? sizes[0] : 1; }

  [[nodiscard]] SHARDRUN_ON_DEVICE Offsets offsets(std::int64_t number) const {
    Offsets found = {};
    for (int i = 0; i + 1 < count; ++i) {
      const std::int64_t around = quotient(number, sizes[i]);
      add(found, i, number - around * sizes[i]);
      number = around;
    }
    if (count > 0) {
      add(found, count - 1, number);
    }
    return found;
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t offset(std::int64_t number) const { return offsets(number).of[0]; }

  SHARDRUN_ON_DEVICE void add(Offsets& to, int loop, std::int64_t index) const {
    for (int t = 0; t < tensors; ++t) {
      to.of[t] += index * strides[t][loop];
    }
  }

  int count = 0;
  std::int64_t sizes[max_rank] = {};             ///< innermost first
  std::int64_t strides[tensors][max_rank] = {};  ///< in elements
};

[[nodiscard]] inline bool has_dimension(std::span<const std::int64_t> dims, std::uint32_t d) {
  for (const std::int64_t dim : dims) {
    if (dim == static_cast<std::int64_t>(d)) {
      return true;
    }
  }
  return false;
}

/// Two loops: over the dimensions of a tensor that are in `dims` (`chosen`), and over the others.
struct TwoLoops {
  TwoLoops(const TensorView& tensor, std::span<const std::int64_t> dims) {
    std::int64_t stride = 1;
    for (std::uint32_t d = tensor.rank; d-- > 0;) {
      (has_dimension(dims, d) ? chosen : others).add_outer(tensor.shape[d], stride);
      stride *= tensor.shape[d];
    }
  }

  Loops<1> chosen;
  Loops<1> others;
};

}  // namespace shardrun::device::cuda
