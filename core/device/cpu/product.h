#pragma once

#include <algorithm>
#include <cstdint>

#include "core/device/matrices.h"
#include "core/device/threads.h"

/// How products of matrices are cut into tiles.
namespace shardrun::device::cpu {

/// How a product is cut along the longer side of c. The cut depends on sizes alone: a library chooses its algorithm,
/// and so the order of its sums, by a tile's size, and results must not depend on the number of threads.
struct Tiles {
  std::int64_t count;
  std::int64_t unit;  ///< each tile begins at a multiple of this

  [[nodiscard]] Product tile(const Product& whole, std::int64_t number) const {
    const bool by_rows = whole.m > whole.n;
    const std::int64_t size = by_rows ? whole.m : whole.n;
    const std::int64_t units = (size + unit - 1) / unit;
    const std::int64_t begin = units * number / count * unit;
    const std::int64_t length = std::min(size, units * (number + 1) / count * unit) - begin;
    return by_rows ? whole.tile(begin, 0, length, whole.n) : whole.tile(0, begin, whole.m, length);
  }

  /// The number of threads that share the tiles.
  [[nodiscard]] int parts(int threads) const { return static_cast<int>(std::min<std::int64_t>(count, threads)); }

  /// Calls body(number, part) for every tile. A thread runs the tiles of one `part`, one after the other.
  template <typename Body>
  void run(Threads& threads, const Body& body) const {
    const int all = parts(threads.count());
    threads.run(all, [&](int part) {
      for (std::int64_t number = count * part / all; number < count * (part + 1) / all; ++number) {
        body(number, part);
      }
    });
  }
};

/// Tiles for the float32 products of sgemm.h.
[[nodiscard]] Tiles sgemm_tiles(std::int64_t m, std::int64_t n, std::int64_t k) noexcept;
/// Tiles for products with the CPU's bfloat16 instructions (prepared_product.h).
[[nodiscard]] Tiles bf16_tiles(std::int64_t m, std::int64_t n, std::int64_t k) noexcept;

}  // namespace shardrun::device::cpu
