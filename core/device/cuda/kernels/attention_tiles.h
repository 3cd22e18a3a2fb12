#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/device/cuda/attention.h"
#include "core/device/cuda/matrix.h"

/// The kernels of attention and of its gradient share this: the tensors, a block's queries, the loop over the tiles
/// that these queries see, and products of tiles with tensor cores.
namespace shardrun::device::cuda::attention {

// Attention of bfloat16 with tensor cores. A block has four warps. Each warp owns 16 or 32 rows (queries or keys) of
// the block. The block loops over tiles of the other kind of rows: while it computes with one tile, the next is copied
// to shared memory. Every warp reads whole tiles; with 32 rows it computes twice as much for each read. Probabilities
// stay in a warp's registers, and are rounded to bfloat16 before they are multiplied. Sums are float32.

inline constexpr int warps = 4;
inline constexpr int fragment_rows = 16;

inline constexpr float log_2 = 0.693147181F;

/// The most elements of a head that the kernels with tensor cores take.
inline constexpr std::int64_t widest = 128;
[[nodiscard]] inline bool all_bfloat(std::initializer_list<const HeadRows*> operands) {
  bool all = true;
  for (const HeadRows* rows : operands) {
    all = all && rows->data.is_bfloat;
  }
  return all;
}

/// `rows` rows of `width` bfloat16 numbers in shared memory. Neighbouring rows begin in different banks.
template <int rows, int width>
class MatrixTile {
 public:
  static constexpr int eights = width / 8;
  static constexpr int stride = eights + 1;
  static constexpr std::size_t bytes() { return shared_bytes<Eight>(rows * stride); }

  SHARDRUN_ON_DEVICE explicit MatrixTile(Block& block) : data_(block.shared<Eight>(rows * stride)) {}

  /// Begins to load `number` rows of a head, from row `first` on, into the tile's rows from `to` on. Elements outside
  /// the tensor are 0. The rows can be read after wait_for_copies() and sync(). `in_eights`: the caller knows that
  /// from.in_eights is true.
  template <int number = rows, bool in_eights = false>
  SHARDRUN_ON_DEVICE void load(Block& block, const HeadRows& from, std::int64_t begin, std::int64_t first,
                               std::int64_t count, std::int64_t columns, int to = 0) const {
    constexpr int all = warps * warp_size;
    const auto* const data = reinterpret_cast<const std::uint16_t*>(from.data.data);
    SHARDRUN_UNROLLED for (int i = 0; i < number * eights / all; ++i) {
      const int eight = block.thread() + i * all;
      const int row = eight / eights;
      const int column = eight % eights * 8;
      const std::int64_t element = begin + (first + row) * from.of_row + column;
      const std::int64_t left = first + row < count ? columns - column : 0;
      const int place = (to + row) * stride + column / 8;
      if ((in_eights || from.in_eights) && left >= 8) {
        block.copy_later(data_, place, data + element);
        continue;
      }
      Eight found = {};
      SHARDRUN_UNROLLED for (int k = 0; k < 8 && !in_eights; ++k) {
        const std::uint32_t bits = k < left ? data[element + k] : 0U;
        found.words[k / 2] |= bits << static_cast<unsigned>(k % 2 * 16);
      }
      data_[place] = found;
    }
  }

  [[nodiscard]] SHARDRUN_ON_DEVICE FragmentA a(Block& block, int row, int column) const {
    return load_a<stride>(block, data_, 0, row, column / 8);
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE TwoB transposed_b(Block& block, int row, int column) const {
    return load_transposed_b<stride>(block, data_, 0, row, column / 8);
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE TwoB b(Block& block, int row, int column) const {
    return load_b<stride>(block, data_, 0, row, column / 8);
  }

 private:
  Shared<Eight> data_;
};

/// sums[i] += a b^T, with the 16 rows of `a` that begin at a_row + 16 i, and the 8 * fragments rows of `b` that begin
/// at b_row.
template <int width, int a_rows, int b_rows, int count, int fragments>
SHARDRUN_ON_DEVICE inline void add_row_products(Block& block, const MatrixTile<a_rows, width>& a, int a_row,
                                                const MatrixTile<b_rows, width>& b, int b_row,
                                                FragmentC (&sums)[count][fragments]) {
  SHARDRUN_UNROLLED for (int d = 0; d < width; d += 16) {
    FragmentA left[count];
    SHARDRUN_UNROLLED for (int i = 0; i < count; ++i) { left[i] = a.a(block, a_row + i * fragment_rows, d); }
    SHARDRUN_UNROLLED for (int n = 0; n < fragments / 2; ++n) {
      const TwoB right = b.transposed_b(block, b_row + n * 16, d);
      SHARDRUN_UNROLLED for (int i = 0; i < count; ++i) {
        multiply_add(block, left[i], right.of[0], sums[i][2 * n]);
        multiply_add(block, left[i], right.of[1], sums[i][2 * n + 1]);
      }
    }
  }
}

/// sums[i] += a[i] b. Each a[i] is 16 rows, held by a warp as float32 sums and rounded to bfloat16 here. The rows of b
/// start at b_row.
template <int width, int b_rows, int count, int fragments>
SHARDRUN_ON_DEVICE inline void add_rounded_product(Block& block, const FragmentC (&a)[count][fragments],
                                                   const MatrixTile<b_rows, width>& b, int b_row,
                                                   FragmentC (&sums)[count][width / 8]) {
  SHARDRUN_UNROLLED for (int k = 0; k < fragments / 2; ++k) {
    FragmentA left[count];
    SHARDRUN_UNROLLED for (int i = 0; i < count; ++i) {
      const FragmentC& first = a[i][2 * k];
      const FragmentC& second = a[i][2 * k + 1];
      left[i] = {{bfloat_pair(first.of[0], first.of[1]), bfloat_pair(first.of[2], first.of[3]),
                  bfloat_pair(second.of[0], second.of[1]), bfloat_pair(second.of[2], second.of[3])}};
    }
    SHARDRUN_UNROLLED for (int n = 0; n < width / 16; ++n) {
      const TwoB right = b.b(block, b_row + k * 16, n * 16);
      SHARDRUN_UNROLLED for (int i = 0; i < count; ++i) {
        multiply_add(block, left[i], right.of[0], sums[i][2 * n]);
        multiply_add(block, left[i], right.of[1], sums[i][2 * n + 1]);
      }
    }
  }
}

/// The dropout factors for a fragment of probabilities. `query`, `key`: those of its first element.
[[nodiscard]] SHARDRUN_ON_DEVICE inline FragmentC dropout_factors(Block& block, const Shape& shape, const Head& head,
                                                                  std::int64_t query, std::int64_t key) {
  const std::int64_t sample = shape.first_sample + head.sample;
  FragmentC found;
  if (shape.keys % 4 != 0) {
    SHARDRUN_UNROLLED for (int i = 0; i < 4; ++i) {
      found.of[i] = shape.stream.factor(sample, shape.draw_of(head, query + i / 2 * 8, key + i % 2));
    }
    return found;
  }
  // Two neighbouring lanes hold four consecutive keys of two rows. A draw serves four keys, so each draws for one row.
  const bool is_odd = block.lane() % 2 == 1;
  const DropoutStream::Factors drawn =
      shape.stream.factors(sample, shape.draw_of(head, query + (is_odd ? 8 : 0), key) / 4);
  const int other = block.lane() ^ 1;
  const float first = block.exchange(is_odd ? drawn.of[0] : drawn.of[2], other);
  const float second = block.exchange(is_odd ? drawn.of[1] : drawn.of[3], other);
  found.of[0] = is_odd ? first : drawn.of[0];
  found.of[1] = is_odd ? second : drawn.of[1];
  found.of[2] = is_odd ? drawn.of[2] : first;
  found.of[3] = is_odd ? drawn.of[3] : second;
  return found;
}

/// Like dropout_factors(), for a fragment of transposed probabilities, whose rows are keys.
[[nodiscard]] SHARDRUN_ON_DEVICE inline FragmentC transposed_dropout_factors(Block& block, const Shape& shape,
                                                                             const Head& head, std::int64_t query,
                                                                             std::int64_t key) {
  const std::int64_t sample = shape.first_sample + head.sample;
  FragmentC found;
  if (shape.keys % 4 != 0) {
    SHARDRUN_UNROLLED for (int i = 0; i < 4; ++i) {
      found.of[i] = shape.stream.factor(sample, shape.draw_of(head, query + i % 2, key + i / 2 * 8));
    }
    return found;
  }
  // For each of their four elements, four lanes hold consecutive keys of one query, which one draw serves. Lane i of
  // the four draws for element i, and then the 4 x 4 numbers are transposed.
  const int i = block.lane() / 4 % 4;
  const DropoutStream::Factors drawn =
      shape.stream.factors(sample, shape.draw_of(head, query + i % 2, key + i / 2 * 8) / 4);
  SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) { found.of[k] = drawn.of[k]; }
  SHARDRUN_UNROLLED for (int bit = 1; bit <= 2; bit *= 2) {
    SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) {
      if ((k & bit) != 0) {
        continue;
      }
      float& low = found.of[k];
      float& high = found.of[k | bit];
      const bool gives_low = (i & bit) != 0;
      const float received = block.exchange(gives_low ? low : high, block.lane() ^ (4 * bit));
      low = gives_low ? received : low;
      high = gives_low ? high : received;
    }
  }
  return found;
}

/// Combines the values of the four lanes that hold the same rows of a fragment of sums.
template <typename Join>
[[nodiscard]] SHARDRUN_ON_DEVICE inline float join_fragment_row(Block& block, float value, const Join& join) {
  value = join(value, block.exchange(value, block.lane() ^ 1));
  return join(value, block.exchange(value, block.lane() ^ 2));
}

/// Writes 16 rows of a head, from row `first` on.
template <int width>
SHARDRUN_ON_DEVICE inline void store_rows(const Block& block, const HeadRows& to, std::int64_t begin,
                                          std::int64_t first, std::int64_t count, std::int64_t columns,
                                          const FragmentC (&values)[width / 8]) {
  SHARDRUN_UNROLLED for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first + block.lane() / 4 + 8 * half;
    if (row >= count) {
      continue;
    }
    SHARDRUN_UNROLLED for (int n = 0; n < width / 8; ++n) {
      const std::int64_t column = n * 8 + block.lane() % 4 * 2;
      const std::int64_t element = begin + row * to.of_row + column;
      const FragmentC& pair = values[n];
      if (to.in_packs && column + 1 < columns) {
        to.data.set_pack<2>(element, {pair.of[2 * half], pair.of[2 * half + 1]});
        continue;
      }
      SHARDRUN_UNROLLED for (int e = 0; e < 2; ++e) {
        if (column + e < columns) {
          to.data.set(element + e, pair.of[2 * half + e]);
        }
      }
    }
  }
}

struct Tensors {
  Shape shape;
  HeadRows q;
  HeadRows k;
  HeadRows v;
  HeadRows out;
  Reals lse;
};

/// The queries of one head that a block owns.
struct OwnQueries {
  Head head;
  std::int64_t first;
};

/// The number of blocks if each owns `rows` queries of one head.
[[nodiscard]] inline std::int64_t blocks_of_queries(const Shape& shape, int rows = tile) {
  return shape.batch * shape.query_heads * shape.query_tiles(rows);
}
/// The queries of block `number`. The first blocks get the last queries, which with a causal mask see the most keys.
[[nodiscard]] SHARDRUN_ON_DEVICE inline OwnQueries own_queries(const Shape& shape, std::int64_t number,
                                                               int rows = tile) {
  const std::int64_t heads = shape.batch * shape.query_heads;
  return {shape.head_of(number % heads), (shape.query_tiles(rows) - 1 - number / heads) * rows};
}

/// Writes the values that a thread holds of a tile to shared memory.
SHARDRUN_ON_DEVICE inline void write_tile(const RowTile& to, int row, int column, const float (&values)[each][each]) {
  SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
    Four four;
    SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) { four.of[c] = values[r][c]; }
    to.at(row + r, column / 4) = four;
  }
}

/// The tiles of `step` rows that cover a range of rows, for over_tiles().
template <int step>
class TilesOfRows {
 public:
  SHARDRUN_ON_DEVICE explicit TilesOfRows(const Range& range) : row_(range.begin / step * step), end_(range.end) {}
  /// The first row of the current tile.
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t row() const { return row_; }
  [[nodiscard]] SHARDRUN_ON_DEVICE bool has_tile() const { return row_ < end_; }
  SHARDRUN_ON_DEVICE void advance() { row_ += step; }

 private:
  std::int64_t row_;
  std::int64_t end_;
};

/// Loops over tiles of `step` rows, for tensor cores. Shared memory has room for two tiles: while the block computes
/// with one, the next is copied. load(tiles, at) begins to copy the current tile of `tiles` to the rows from `at` on.
/// compute(tiles, at) computes with it. A warp skips tiles that have no rows in `of_warp`.
template <int step, typename Tiles, typename Load, typename Compute>
SHARDRUN_ON_DEVICE inline void over_tiles(Block& block, Tiles tiles, const Range& of_warp, const Load& load,
                                          const Compute& compute) {
  if (tiles.has_tile()) {
    load(tiles, 0);
  }
  for (int at = 0; tiles.has_tile(); at = step - at) {
    block.wait_for_copies();
    block.sync();  // this also means that all warps have read the other tile
    const Tiles now = tiles;
    tiles.advance();
    if (tiles.has_tile()) {
      load(tiles, step - at);
    }
    if (now.row() < of_warp.end && of_warp.begin < now.row() + step) {
      compute(now, at);
    }
  }
  block.wait_for_copies();  // for the copies of the block's own rows, if there was no tile
}

}  // namespace shardrun::device::cuda::attention
