#include "core/device/reference/product.h"

#include <algorithm>

#include "core/device/machine_level.h"
#include "core/device/reference/product_tile.h"

namespace shardrun::device::reference {

// product_tile.cpp is compiled for each instruction set. Each compilation defines one of these.
namespace baseline {
MultiplyTile multiply_tile;
}
namespace v3 {
MultiplyTile multiply_tile;
}
namespace v4 {
MultiplyTile multiply_tile;
}

namespace {

/// The size of a tile, which is one product of Eigen's: large enough to be fast, small enough for many threads.
constexpr std::int64_t tile_rows = 64;
constexpr std::int64_t tile_columns = 256;

}  // namespace

MultiplyTile* multiply_tile_of([[maybe_unused]] int level) noexcept {
#if defined(SHARDRUN_KERNEL_X86_LEVELS)
  if (level >= 3) {
    return level >= 4 ? v4::multiply_tile : v3::multiply_tile;
  }
#endif
  return baseline::multiply_tile;
}

void multiply(Threads& threads, const Operand& a, const Operand& b, double* c, bool accumulate) {
  static MultiplyTile* const multiply_tile = multiply_tile_of(machine_level());
  const std::int64_t rows = a.transposed ? a.columns : a.rows;
  const std::int64_t columns = b.transposed ? b.rows : b.columns;
  const std::int64_t tiles_across = (columns + tile_columns - 1) / tile_columns;
  const std::int64_t tiles_down = (rows + tile_rows - 1) / tile_rows;
  threads.split(tiles_down * tiles_across, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t row = tile / tiles_across * tile_rows;
      const std::int64_t column = tile % tiles_across * tile_columns;
      multiply_tile(a, b,
                    {.row = row,
                     .column = column,
                     .rows = std::min(tile_rows, rows - row),
                     .columns = std::min(tile_columns, columns - column)},
                    c, accumulate);
    }
  });
}

}  // namespace shardrun::device::reference
