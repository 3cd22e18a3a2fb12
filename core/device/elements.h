#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/device.h"

namespace shardrun::device {

/// Element `index` of a tensor in host memory, as float64.
[[nodiscard]] double read_element(const TensorView& view, std::int64_t index) noexcept;

/// Elements of `dtype` as float64. `bytes` need not be aligned. REQUIRES: bytes.size() is values.size() elements.
void read_elements(graph::DType dtype, std::span<const std::byte> bytes, std::span<double> values) noexcept;

/// Writes numbers as elements of `dtype`, rounded to nearest with ties to even. Integers are cut to whole numbers;
/// REQUIRES: the type has them. The same REQUIRES on sizes.
void write_elements(graph::DType dtype, std::span<const double> values, std::span<std::byte> bytes) noexcept;

/// Elements from number `first` on of a tensor in host memory. REQUIRES: it has them.
void read_elements(const TensorView& view, std::int64_t first, std::span<double> values) noexcept;

/// Writes elements. Numbers are first rounded to the type that the graph gives the tensor.
void write_elements(const TensorView& view, std::int64_t first, std::span<double> values) noexcept;

/// Rounds numbers to those that `dtype` has if it is bf16 or f16; numbers of other types are kept, because a device
/// that stores them wider computes with more digits on purpose.
void round_elements(graph::DType dtype, std::span<double> values) noexcept;

/// Whether an element is NaN or Inf. Never, for integers.
[[nodiscard]] bool has_non_finite(const TensorView& view) noexcept;

}  // namespace shardrun::device
