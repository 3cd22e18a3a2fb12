#pragma once

#include <cstdint>

#include "core/device/cpu/sgemm.h"

namespace shardrun::device::cpu {

/// Loops over blocks of matrices. A conversion takes `rows` rows of `columns` elements; rows begin `from_stride` and
/// `to_stride` elements apart.
struct BlockLoops {
  /// Converts bfloat16, or float16 if `halves`, to float32.
  void (*widen)(const void* from, bool halves, std::int64_t from_stride, float* to, std::int64_t to_stride,
                std::int64_t rows, std::int64_t columns);
  /// Converts float32 to bfloat16. With `add`, adds to the old value and rounds the sum.
  void (*narrow)(const float* from, std::int64_t from_stride, void* to, std::int64_t to_stride, std::int64_t rows,
                 std::int64_t columns, bool add);
  /// Like sgemm(), for matrices so small that a library's preparations would take longer than their product.
  decltype(sgemm)* multiply;
};

/// The loops for this machine's instruction set.
[[nodiscard]] const BlockLoops& block_loops() noexcept;

}  // namespace shardrun::device::cpu
