#pragma once

#include <cstdint>

#include "core/device/threads.h"

namespace shardrun::device::reference {

/// A matrix of float64 stored row by row without gaps, or the transpose of one.
struct Operand {
  const double* data;
  std::int64_t rows;     ///< of the stored matrix
  std::int64_t columns;  ///< of the stored matrix
  bool transposed = false;
};

/// c = a b, or c += a b if `accumulate`. Sizes alone decide the order of sums in Eigen, so results have the same bits
/// with any number of threads.
/// a: [M, K]   b: [K, N]   c: [M, N], which must not overlap a or b
void multiply(Threads& threads, const Operand& a, const Operand& b, double* c, bool accumulate);

}  // namespace shardrun::device::reference
