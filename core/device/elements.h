#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/device.h"

namespace shardrun::device {

/// Element `index` of a tensor in host memory, as float64.
[[nodiscard]] double read_element(const TensorView& view, std::int64_t index) noexcept;

/// Reads elements of type `dtype` as float64. `bytes` need not be aligned. REQUIRES: it has values.size() elements.
void read_elements(graph::DType dtype, std::span<const std::byte> bytes, std::span<double> values) noexcept;

/// Writes numbers as elements of `dtype`, rounded to nearest with ties to even; for integers, fractions are cut off.
/// REQUIRES: an integer type can hold the numbers, and `bytes` has values.size() elements.
void write_elements(graph::DType dtype, std::span<const double> values, std::span<std::byte> bytes) noexcept;

/// Reads values.size() elements from number `first` on of a tensor in host memory. REQUIRES: the tensor has them.
void read_elements(const TensorView& view, std::int64_t first, std::span<double> values) noexcept;

/// Writes elements from number `first` on. Numbers are first rounded to the type that the graph gives the tensor.
void write_elements(const TensorView& view, std::int64_t first, std::span<double> values) noexcept;

/// The same for float32 numbers, which float32 and 16-bit tensors take fast.
void write_elements(const TensorView& view, std::int64_t first, std::span<const float> values);

/// The least number that a real type rounds to infinity, for float32 numbers; infinity if it holds them all.
[[nodiscard]] float overflow_of(graph::DType dtype) noexcept;

/// If `dtype` is bf16 or f16, rounds the numbers to it. Numbers of other types are kept, because a device that stores
/// them wider does so to compute with more digits.
void round_elements(graph::DType dtype, std::span<double> values) noexcept;

/// Whether any element is NaN or Inf. False for integers.
[[nodiscard]] bool has_non_finite(const TensorView& view) noexcept;

}  // namespace shardrun::device
