#include <Eigen/Core>

#include "core/device/cpu/sgemm.h"

// This file is compiled once for each instruction set. CMakeLists.txt renames the namespace Eigen each time. Otherwise
// the linker would keep one copy of each template for all variants, perhaps one that a machine cannot run.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

decltype(sgemm) eigen_sgemm;

namespace {

using Stored = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strides = Eigen::OuterStride<>;
using Operand = Eigen::Map<const Stored, 0, Strides>;

/// `rows` and `columns` are those after transposing.
Operand stored(const Matrix& matrix, std::int64_t rows, std::int64_t columns) {
  return matrix.transposed ? Operand(matrix.data, columns, rows, Strides(matrix.stride))
                           : Operand(matrix.data, rows, columns, Strides(matrix.stride));
}

/// Calls use(matrix), or use() with its transpose if it is used transposed.
template <typename Use>
void as_used(const Matrix& matrix, const Operand& stored, const Use& use) {
  if (matrix.transposed) {
    use(stored.transpose());
  } else {
    use(stored);
  }
}

}  // namespace

void eigen_sgemm(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Matrix a, Matrix b, float* c,
                 std::int64_t c_stride, bool accumulate) {
  constexpr std::int64_t depth = 256;  // terms summed before their sum is added: this bounds the rounding error
  Eigen::Map<Stored, 0, Strides> result(c, m, n, Strides(c_stride));
  if (!accumulate) {
    result.setZero();
  }
  as_used(a, stored(a, m, k), [&](const auto& left) {
    as_used(b, stored(b, k, n), [&](const auto& right) {
      for (std::int64_t begin = 0; begin < k; begin += depth) {
        const std::int64_t terms = k - begin < depth ? k - begin : depth;
        result.noalias() += alpha * left.middleCols(begin, terms) * right.middleRows(begin, terms);
      }
    });
  });
}

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
