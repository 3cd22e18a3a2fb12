#pragma once

#include <cstdint>

#include "core/device/threads.h"

namespace shardrun::device::reference {

/// A matrix of float64 that is stored row by row without gaps, or the transpose of one.
struct Operand {
  const double* data;
  std::int64_t rows;     ///< as it is stored
  std::int64_t columns;  ///< as it is stored
  bool transposed = false;
};

/// c = a b, or c += a b. Sums within the product are Eigen's: in no particular order, but in one that sizes alone
/// decide, so that results have the same bits with any number of threads.
/// a: [M, K]   b: [K, N]   c: [M, N], no part of a or b
void multiply(Threads& threads, const Operand& a, const Operand& b, double* c, bool accumulate);

}  // namespace shardrun::device::reference
