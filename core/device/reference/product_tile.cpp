#include "core/device/reference/product_tile.h"

#include <Eigen/Core>

// This file is compiled once for each instruction set. CMakeLists.txt gives the namespace Eigen another name each time:
// else the linker would keep one copy of each of its templates for all, and might keep one that a machine cannot run.

namespace shardrun::device::reference::SHARDRUN_KERNEL_VARIANT {

MultiplyTile multiply_tile;

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stored = Eigen::Map<const Matrix>;

Stored stored(const Operand& operand) { return {operand.data, operand.rows, operand.columns}; }

Matrix product(const Operand& a, const Operand& b, const Tile& tile) {
  if (a.transposed && b.transposed) {
    return stored(a).middleCols(tile.row, tile.rows).transpose() *
           stored(b).middleRows(tile.column, tile.columns).transpose();
  }
  if (a.transposed) {
    return stored(a).middleCols(tile.row, tile.rows).transpose() * stored(b).middleCols(tile.column, tile.columns);
  }
  if (b.transposed) {
    return stored(a).middleRows(tile.row, tile.rows) * stored(b).middleRows(tile.column, tile.columns).transpose();
  }
  return stored(a).middleRows(tile.row, tile.rows) * stored(b).middleCols(tile.column, tile.columns);
}

}  // namespace

void multiply_tile(const Operand& a, const Operand& b, const Tile& tile, double* c, bool accumulate) {
  const std::int64_t columns = b.transposed ? b.rows : b.columns;
  Eigen::Map<Matrix, 0, Eigen::OuterStride<>> part(c + tile.row * columns + tile.column, tile.rows, tile.columns,
                                                   Eigen::OuterStride<>(columns));
  if (accumulate) {
    part += product(a, b, tile);
  } else {
    part = product(a, b, tile);
  }
}

}  // namespace shardrun::device::reference::SHARDRUN_KERNEL_VARIANT
