#pragma once

#include "core/device/cuda/attention.h"
#include "core/device/cuda/attention_matrices.h"

/// What the kernels of attention and of its gradient share: the tensors, the queries that a block has, and the loop
/// over the tiles of what they see.
namespace shardrun::device::cuda::attention {

struct Tensors {
  Shape shape;
  HeadRows q;
  HeadRows k;
  HeadRows v;
  HeadRows out;
  Reals lse;
};

/// A block's queries, of one head.
struct OwnQueries {
  Head head;
  std::int64_t first;
};

/// How many blocks there are that have `rows` queries of one head each.
[[nodiscard]] inline std::int64_t blocks_of_queries(const Shape& shape, int rows = tile) {
  return shape.batch * shape.heads * shape.group * shape.query_tiles(rows);
}
/// The queries of block `number` of these. The last queries come first: of a causal mask they see the most.
[[nodiscard]] SHARDRUN_ON_DEVICE inline OwnQueries own_queries(const Shape& shape, std::int64_t number,
                                                               int rows = tile) {
  const std::int64_t heads = shape.batch * shape.heads * shape.group;
  return {shape.head_of(number % heads), (shape.query_tiles(rows) - 1 - number / heads) * rows};
}

/// Writes a thread's part of a tile to shared memory.
SHARDRUN_ON_DEVICE inline void write_tile(const RowTile& to, int row, int column, const float (&values)[each][each]) {
  SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
    Four four;
    SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) { four.of[c] = values[r][c]; }
    to.at(row + r, column / 4) = four;
  }
}

/// The tiles of `step` rows with the rows of a range, for over_tiles().
template <int step>
class TilesOfRows {
 public:
  SHARDRUN_ON_DEVICE explicit TilesOfRows(const Range& range) : row_(range.begin / step * step), end_(range.end) {}
  /// The tile's first.
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t row() const { return row_; }
  [[nodiscard]] SHARDRUN_ON_DEVICE bool has_tile() const { return row_ < end_; }
  SHARDRUN_ON_DEVICE void advance() { row_ += step; }

 private:
  std::int64_t row_;
  std::int64_t end_;
};

/// By tensor cores: a block goes over tiles of `step` rows. There is room for two in shared memory: while the block
/// computes with one, the next is copied. load(tiles, at) begins to copy the tile at which `tiles` stands to the rows
/// from `at` on; compute(tiles, at) computes with it. A warp leaves out tiles without rows of `of_warp`.
template <int step, typename Tiles, typename Load, typename Compute>
SHARDRUN_ON_DEVICE inline void over_tiles(Block& block, Tiles tiles, const Range& of_warp, const Load& load,
                                          const Compute& compute) {
  if (tiles.has_tile()) {
    load(tiles, 0);
  }
  for (int at = 0; tiles.has_tile(); at = step - at) {
    block.wait_for_copies();
    block.sync();  // also because the other tile has been read
    const Tiles now = tiles;
    tiles.advance();
    if (tiles.has_tile()) {
      load(tiles, step - at);
    }
    if (now.row() < of_warp.end && of_warp.begin < now.row() + step) {
      compute(now, at);
    }
  }
  block.wait_for_copies();  // of the block's own rows, if there is no tile
}

}  // namespace shardrun::device::cuda::attention
