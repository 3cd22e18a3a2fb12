#pragma once

#include <cstdint>

namespace shardrun::device::cpu {

/// A matrix operand: row-major with a row stride, used as stored or transposed.
struct Matrix {
  const float* data;
  std::int64_t stride;
  bool transposed = false;
};

/// c[m, n] = alpha * a[m, k] * b[k, n] (+ c, if accumulate), on the calling thread.
void sgemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Matrix a, Matrix b, float* c,
           std::int64_t c_stride, bool accumulate);

/// Has the library do now what it does once, in its first product: it makes its machine code. For whoever prepares
/// products: the first call then takes as long as others.
void set_up_sgemm();

}  // namespace shardrun::device::cpu
