#include "core/device/reference/product_tile.h"

#include <Eigen/Core>

// This file is compiled once for each instruction set. CMakeLists.txt renames the namespace Eigen each time. Otherwise
// the linker would keep one copy of each template for all variants, perhaps one that a machine cannot run.

namespace shardrun::device::reference::SHARDRUN_KERNEL_VARIANT {

MultiplyTile multiply_tile;

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stored = Eigen::Map<const Matrix>;
/// A part of a stored matrix, or a copy of its transpose.
using Factor = Eigen::Ref<const Matrix, 0, Eigen::OuterStride<>>;

Stored stored(const Operand& operand) { return {operand.data, operand.rows, operand.columns}; }

Factor rows_of(const Operand& a, std::int64_t first, std::int64_t count) {
  if (a.transposed) {
    return Factor(stored(a).middleCols(first, count).transpose());
  }
  return Factor(stored(a).middleRows(first, count));
}

Factor columns_of(const Operand& b, std::int64_t first, std::int64_t count) {
  if (b.transposed) {
    return Factor(stored(b).middleRows(first, count).transpose());
  }
  return Factor(stored(b).middleCols(first, count));
}

}  // namespace

void multiply_tile(const Operand& a, const Operand& b, const Tile& tile, double* c, bool accumulate) {
  const std::int64_t columns = b.transposed ? b.rows : b.columns;
  Eigen::Map<Matrix, 0, Eigen::OuterStride<>> part(c + tile.row * columns + tile.column, tile.rows, tile.columns,
                                                   Eigen::OuterStride<>(columns));
  const Matrix product = rows_of(a, tile.row, tile.rows) * columns_of(b, tile.column, tile.columns);
  if (accumulate) {
    part += product;
  } else {
    part = product;
  }
}

}  // namespace shardrun::device::reference::SHARDRUN_KERNEL_VARIANT
