#pragma once

#include <cstdint>

#include "core/device/reference/product.h"

namespace shardrun::device::reference {

/// A rectangle of a product's result.
struct Tile {
  std::int64_t row;
  std::int64_t column;
  std::int64_t rows;
  std::int64_t columns;
};

/// Computes one tile of c = a b, or of c += a b.
using MultiplyTile = void(const Operand& a, const Operand& b, const Tile& tile, double* c, bool accumulate);

/// The fastest variant that a machine of this level (machine_level.h) can run.
[[nodiscard]] MultiplyTile* multiply_tile_of(int level) noexcept;

}  // namespace shardrun::device::reference
