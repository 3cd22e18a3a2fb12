#pragma once

#include <cstddef>
#include <cstdint>

#include "core/graph/tensor_type.h"

/// Products of matrices of float32 or bfloat16. Operands can also be float16.
namespace shardrun::device {

/// A row-major matrix, used as stored or transposed.
struct Operand {
  std::byte* data;  ///< null if only sizes are needed
  graph::DType dtype;
  std::int64_t stride;  ///< elements from one stored row to the next
  bool transposed = false;

  /// The part of the matrix from this row and column on, both counted after transposing.
  [[nodiscard]] Operand from(std::int64_t row, std::int64_t column) const noexcept {
    const std::int64_t elements = transposed ? column * stride + row : row * stride + column;
    const auto bytes = static_cast<std::int64_t>(graph::element_bytes(dtype));
    return {data == nullptr ? nullptr : data + elements * bytes, dtype, stride, transposed};
  }
  [[nodiscard]] float* floats() const noexcept { return reinterpret_cast<float*>(data); }
};

/// c[m, n] = a[m, k] * b[k, n]
struct Product {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  Operand a;
  Operand b;
  Operand c;
  bool fixed_order = false;  ///< on the cpu: the order of an element's sum depends on k and on b's layout alone

  [[nodiscard]] Product tile(std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) const {
    return {rows, columns, k, a.from(row, 0), b.from(0, column), c.from(row, column), fixed_order};
  }
};

}  // namespace shardrun::device
