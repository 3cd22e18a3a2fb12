#pragma once

#include <cstdint>

#include "core/device/cuda/rows.h"

/// Products of float32 matrices, in tiles held in shared memory: result(m, n) = the sum over k of a(m, k) b(k, n), for
/// each index of a batch. An operand says where its elements are, so convolutions are products too. Sizes alone decide
/// the order in which a sum is made, so its bits are always the same.
///
/// An operand of type T has
/// - T::Row row(batch, m): the part of an address that a row (of b: a column n) shares;
/// - T::Inner inner(batch, k): the part that an index k shares;
/// - float get(Row, Inner);
/// - bool inner_is_fast: whether consecutive k, rather than consecutive rows, are consecutive in memory.
/// A result has void put(batch, m, n, float).
namespace shardrun::device::cuda {

/// A sum together with its rounding error, so that rounding does not grow with the number of terms. Kahan 1965,
/// "Pracniques: further remarks on reducing truncation errors".
struct ExactSum {
  float total = 0;
  float excess = 0;
  SHARDRUN_ON_DEVICE void add(float value) {
    const float wanted = value - excess;
    const float next = total + wanted;
    excess = (next - total) - wanted;
    total = next;
  }
};

template <typename A, typename B, typename Result>
struct Product {
  static constexpr int tile = 64;   ///< rows and columns of the result that a block computes
  static constexpr int depth = 16;  ///< indices k in shared memory at a time
  static constexpr int each = 4;    ///< rows and columns of the result that a thread computes
  static constexpr int side = tile / each;
  static constexpr int threads = side * side;
  static constexpr int stride = tile + 4;  ///< floats per index k; the 4 unused ones spread a column over all banks
  static constexpr int loads = tile * depth / threads;

  A a;
  B b;
  Result result;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t inner;

  [[nodiscard]] static std::size_t shared() { return 2 * shared_bytes<float>(depth * stride); }
  [[nodiscard]] std::int64_t blocks(std::int64_t batch) const {
    return batch * ((rows + tile - 1) / tile) * ((columns + tile - 1) / tile);
  }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t across = (columns + tile - 1) / tile;
    const std::int64_t down = (rows + tile - 1) / tile;
    const std::int64_t batch = block.index() / (across * down);
    const std::int64_t row = block.index() / across % down * tile;
    const std::int64_t column = block.index() % across * tile;
    const Shared<float> of_a = block.shared<float>(depth * stride);
    const Shared<float> of_b = block.shared<float>(depth * stride);
    const Loader<A> load_a(a, block.thread(), batch, row, rows);
    const Loader<B> load_b(b, block.thread(), batch, column, columns);
    const int my_row = block.thread() / side * each;
    const int my_column = block.thread() % side * each;
    ExactSum sums[each][each] = {};
    for (std::int64_t k = 0; k < inner; k += depth) {
      float parts[each][each] = {};
      load_a.load(k, inner, of_a);
      load_b.load(k, inner, of_b);
      block.sync();
      for (int i = 0; i < depth; ++i) {
        float from_a[each];
        float from_b[each];
        for (int e = 0; e < each; ++e) {
          from_a[e] = of_a[i * stride + my_row + e];
          from_b[e] = of_b[i * stride + my_column + e];
        }
        for (int r = 0; r < each; ++r) {
          for (int c = 0; c < each; ++c) {
            parts[r][c] += from_a[r] * from_b[c];
          }
        }
      }
      for (int r = 0; r < each; ++r) {
        for (int c = 0; c < each; ++c) {
          sums[r][c].add(parts[r][c]);
        }
      }
      block.sync();
    }
    for (int r = 0; r < each; ++r) {
      for (int c = 0; c < each; ++c) {
        if (row + my_row + r < rows && column + my_column + c < columns) {
          result.put(batch, row + my_row + r, column + my_column + c, sums[r][c].total);
        }
      }
    }
  }

 private:
  /// Fills one thread's part of an operand's tile.
  template <typename Operand>
  struct Loader {
    SHARDRUN_ON_DEVICE Loader(const Operand& of, int of_thread, std::int64_t of_batch, std::int64_t row,
                              std::int64_t count)
        : operand(of), thread(of_thread), batch(of_batch) {
      for (int i = 0; i < loads; ++i) {
        const std::int64_t r = row + (operand.inner_is_fast ? thread / depth + i * (threads / depth) : thread % tile);
        exists[i] = r < count;
        found[i] = operand.row(batch, exists[i] ? r : row);
      }
    }
    SHARDRUN_ON_DEVICE void load(std::int64_t k, std::int64_t end, const Shared<float>& to) const {
      if (operand.inner_is_fast) {
        const int i = thread % depth;
        const bool within = k + i < end;
        const typename Operand::Inner inner = operand.inner(batch, within ? k + i : k);
        for (int j = 0; j < loads; ++j) {
          const int at = i * stride + thread / depth + j * (threads / depth);
          to[at] = within && exists[j] ? operand.get(found[j], inner) : 0.0F;
        }
      } else {
        for (int j = 0; j < loads; ++j) {
          const int i = thread / tile + j * (threads / tile);
          const bool within = k + i < end && exists[0];
          const typename Operand::Inner inner = operand.inner(batch, k + i < end ? k + i : k);
          to[i * stride + thread % tile] = within ? operand.get(found[0], inner) : 0.0F;
        }
      }
    }

    const Operand& operand;
    int thread;
    std::int64_t batch;
    typename Operand::Row found[loads];
    bool exists[loads];
  };
};

/// Computes few results that are long sums, each in float64 by a block. Reading takes longer, so float64 costs no time.
template <typename A, typename B, typename Result>
struct LongSums {
  A a;
  B b;
  Result result;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t inner;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t number) const {
    const std::int64_t column = number % columns;
    const std::int64_t row = number / columns % rows;
    const std::int64_t batch = number / (columns * rows);
    const typename A::Row of_a = a.row(batch, row);
    const typename B::Row of_b = b.row(batch, column);
    double sum = 0;
    team.template loop<1>(inner, [&](std::int64_t k) {
      sum += static_cast<double>(a.get(of_a, a.inner(batch, k))) * static_cast<double>(b.get(of_b, b.inner(batch, k)));
    });
    const auto total = static_cast<float>(team.join(sum, Plus{}));
    if (team.member() == 0) {
      result.put(batch, row, column, total);
    }
  }
};

template <typename A, typename B, typename Result>
void multiply(const KernelCall& call, std::int64_t batch, std::int64_t rows, std::int64_t columns, std::int64_t inner,
              const A& a, const B& b, const Result& result) {
  if (rows == 0 || columns == 0) {
    return;
  }
  if (batch * rows * columns <= 64 && inner > 1024) {
    for_each_row_in_packs<1>(call, batch * rows * columns, inner,
                             LongSums<A, B, Result>{a, b, result, rows, columns, inner});
    return;
  }
  using Kernel = Product<A, B, Result>;
  const Kernel product = {a, b, result, rows, columns, inner};
  launch(call, product.blocks(batch), Kernel::threads, Kernel::shared(), product);
}

}  // namespace shardrun::device::cuda
