#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/device/threads.h"
#include "core/graph/tensor_type.h"

/// Products of matrices whose elements are float32 or bfloat16, and how they are cut into tiles.
namespace shardrun::device::cpu {

/// A row-major matrix, used as stored or transposed.
struct Operand {
  std::byte* data;  ///< null where only sizes are asked
  graph::DType dtype;
  std::int64_t stride;  ///< elements from one stored row to the next
  bool transposed = false;

  /// The matrix from this row and column on, of the matrix as it is used.
  [[nodiscard]] Operand from(std::int64_t row, std::int64_t column) const noexcept {
    const std::int64_t elements = transposed ? column * stride + row : row * stride + column;
    const std::int64_t bytes = dtype == graph::DType::bf16 ? 2 : 4;
    return {data == nullptr ? nullptr : data + elements * bytes, dtype, stride, transposed};
  }
  [[nodiscard]] float* floats() const noexcept { return reinterpret_cast<float*>(data); }
};

/// c[m, n] = a[m, k] * b[k, n]
struct Product {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  Operand a;
  Operand b;
  Operand c;

  [[nodiscard]] Product tile(std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t columns) const {
    return {rows, columns, k, a.from(row, 0), b.from(0, column), c.from(row, column)};
  }
};

/// How a product is cut along the longer side of c. The cut depends on the sizes alone: a library picks its algorithm,
/// and with it the order of summation, by the size of a tile, so a cut by the number of threads would make results
/// depend on it.
struct Tiles {
  std::int64_t count;
  std::int64_t unit;  ///< a tile's begin is a multiple of it

  [[nodiscard]] Product tile(const Product& whole, std::int64_t number) const {
    const bool by_rows = whole.m > whole.n;
    const std::int64_t size = by_rows ? whole.m : whole.n;
    const std::int64_t units = (size + unit - 1) / unit;
    const std::int64_t begin = units * number / count * unit;
    const std::int64_t length = std::min(size, units * (number + 1) / count * unit) - begin;
    return by_rows ? whole.tile(begin, 0, length, whole.n) : whole.tile(0, begin, whole.m, length);
  }

  /// Among how many of the threads the tiles are shared.
  [[nodiscard]] int parts(int threads) const { return static_cast<int>(std::min<std::int64_t>(count, threads)); }

  /// Calls body(number, part) for every tile. Tiles of different parts are computed at the same time.
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

/// For the float32 products of sgemm.h.
[[nodiscard]] Tiles sgemm_tiles(std::int64_t m, std::int64_t n, std::int64_t k) noexcept;
/// For the products of bf16_product.h.
[[nodiscard]] Tiles bf16_tiles(std::int64_t m, std::int64_t n, std::int64_t k) noexcept;

}  // namespace shardrun::device::cpu
