#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/device.h"

namespace shardrun::device {

/// Element `index` of a tensor in host memory, as float64.
[[nodiscard]] double read_element(const TensorView& view, std::int64_t index) noexcept;

/// Reads elements of type `dtype` as float64. REQUIRES: `bytes` has values.size() elements, at any alignment.
void read_elements(graph::DType dtype, std::span<const std::byte> bytes, std::span<double> values) noexcept;

/// Writes numbers as elements of `dtype`. Real types round to nearest, ties to even. Integer types cut off fractions.
/// REQUIRES: an integer type can hold the numbers, and `bytes` has values.size() elements.
void write_elements(graph::DType dtype, std::span<const double> values, std::span<std::byte> bytes) noexcept;

/// Reads values.size() elements from number `first` on of a tensor in host memory. REQUIRES: the tensor has them.
void read_elements(const TensorView& view, std::int64_t first, std::span<double> values) noexcept;

/// Writes values.size() elements from number `first` on. If the graph's type is narrower, first rounds `values` to it.
void write_elements(const TensorView& view, std::int64_t first, std::span<double> values) noexcept;

/// Does the same with float32 numbers, and keeps `values`. It writes float32, 16-bit and i8 tensors without float64.
void write_elements(const TensorView& view, std::int64_t first, std::span<const float> values);

/// The least float32 number that a real type rounds to infinity. Infinity if the type can hold all float32 numbers.
[[nodiscard]] float overflow_of(graph::DType dtype) noexcept;

/// Rounds the numbers to `dtype` if that is bf16 or f16. Other types keep them: a device that stores float32 as float64
/// does so to compute with more digits.
void round_elements(graph::DType dtype, std::span<double> values) noexcept;

/// Whether any element of a tensor in host memory is NaN or infinite. False for integers.
[[nodiscard]] bool has_non_finite(const TensorView& view) noexcept;

}  // namespace shardrun::device
