#pragma once

#include <cstdint>

namespace shardrun::device {
struct Product;
}

namespace shardrun::device::cpu {

/// A row-major matrix operand with a row stride, used as stored or transposed.
struct Matrix {
  const float* data;
  std::int64_t stride;
  bool transposed = false;
};

/// c[m, n] = alpha * a[m, k] * b[k, n], plus c if `accumulate`. Runs on the calling thread.
void sgemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Matrix a, Matrix b, float* c,
           std::int64_t c_stride, bool accumulate);

/// Makes the library generate its machine code now, if it computes products of this size. Otherwise it would do so in
/// its first product. Call it when products are prepared: then the first step takes as long as later ones.
void set_up_sgemm(const Product& product);

}  // namespace shardrun::device::cpu
