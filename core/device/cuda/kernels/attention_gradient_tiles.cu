#include "core/device/cuda/kernels/attention_gradient.h"

namespace shardrun::device::cuda::attention {
namespace {

/// Where a thread works in a pair of tiles, one of queries and one of keys.
struct TilePair {
  std::int64_t query;  ///< the query of the tile's first row
  std::int64_t key;    ///< the key of the tile's first column
  int row;             ///< the thread's first row in the tile
  int column;
};

/// The tiles from which scores and their gradients are computed. A block owns tiles of queries or of keys, and loops
/// over the tiles of the other kind that they see.
struct ScoreTiles {
  RowTile queries;
  RowTile douts;
  KeyTile keys;
  KeyTile values;

  SHARDRUN_ON_DEVICE explicit ScoreTiles(Block& block) : queries(block), douts(block), keys(block), values(block) {}
  static constexpr std::size_t bytes() { return 2 * RowTile::bytes() + 2 * KeyTile::bytes(); }

  SHARDRUN_ON_DEVICE void load_queries(const Block& block, const GradientTensors& of, const Head& head,
                                       std::int64_t first, std::int64_t d) const {
    const HeadRows dout = of.gradient_of_out();
    queries.load(block, of.q, head.begin(of.q), first, of.shape.queries, d, of.shape.width);
    douts.load(block, dout, head.begin(dout), first, of.shape.queries, d, of.shape.width);
  }
  SHARDRUN_ON_DEVICE void load_keys(const Block& block, const GradientTensors& of, const Head& head, std::int64_t first,
                                    std::int64_t d) const {
    keys.load(block, of.k, head.begin(of.k), first, of.shape.keys, d, of.shape.width);
    values.load(block, of.v, head.begin(of.v), first, of.shape.keys, d, of.shape.width);
  }

  /// Loads a pair of tiles, one part of the width after the other, and adds to the thread's scores and their gradients.
  /// If the block's own tiles have only one part, they are loaded already. The part that begins at `column` comes last,
  /// because it must stay in shared memory for the following products.
  template <bool own_queries>
  SHARDRUN_ON_DEVICE void add_scores(Block& block, const GradientTensors& of, const Head& head, const TilePair& at,
                                     std::int64_t column, float (&scores)[each][each],
                                     float (&gradients)[each][each]) const {
    const std::int64_t chunks = of.shape.chunks();
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::int64_t d = (column / tile + 1 + i) % chunks * tile;
      block.sync();
      if (chunks > 1) {
        own_queries ? load_queries(block, of, head, at.query, d) : load_keys(block, of, head, at.key, d);
      }
      own_queries ? load_keys(block, of, head, at.key, d) : load_queries(block, of, head, at.query, d);
      block.sync();
      add_dots(queries, keys, at.row, at.column, scores);
      add_dots(douts, values, at.row, at.column, gradients);
    }
  }
};

/// The backward pass needs these numbers of a query. `dout_out` is the sum of dout * out, D_i.
struct QueryFacts {
  std::int64_t query;
  Range visible;
  float lse;
  float dout_out;
};
SHARDRUN_ON_DEVICE inline QueryFacts facts_of(const GradientTensors& of, const Head& head, std::int64_t query) {
  if (query >= of.shape.queries) {
    return {query, {0, 0}, 0, 0};
  }
  const std::int64_t at = of.shape.lse_row(head) + query;
  return {query, of.shape.visible(query), of.lse.get(at), of.dout_out[at]};
}

/// Turns a score into `keep` times P, and dO . v into dS.
SHARDRUN_ON_DEVICE inline void differentiate(const Shape& shape, const QueryFacts& at, std::int64_t key, float keep,
                                             float& score, float& gradient) {
  const bool is_visible = at.visible.begin <= key && key < at.visible.end;
  const float mask = shape.has_mask && is_visible ? shape.mask.get(at.query * shape.keys + key) : 0.0F;
  const float p = is_visible ? FloatMath::exp(score * shape.scale + mask - at.lse) : 0.0F;
  gradient = p == 0.0F ? 0.0F : p * (keep * gradient - at.dout_out) * shape.scale;
  score = keep == 0.0F ? 0.0F : p * keep;
}

/// Calls differentiate() for a thread's part of a tile.
SHARDRUN_ON_DEVICE inline void differentiate_tile(const GradientTensors& of, const Head& head, const TilePair& at,
                                                  float (&scores)[each][each], float (&gradients)[each][each]) {
  SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
    const QueryFacts facts = facts_of(of, head, at.query + at.row + r);
    float kept[each] = {1, 1, 1, 1};
    if (of.shape.stream.drops()) {
      of.shape.drop(head, facts.query, at.key + at.column, kept);
    }
    SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) {
      differentiate(of.shape, facts, at.key + at.column + c, kept[c], scores[r][c], gradients[r][c]);
    }
  }
}

/// Computes dq. A block has a tile of queries of one head, and a part of the width.
struct GradientQueries {
  GradientTensors of;
  HeadRows dq;

  [[nodiscard]] static std::size_t shared() { return ScoreTiles::bytes() + RowTile::bytes(); }
  [[nodiscard]] std::int64_t blocks() const { return blocks_of_queries(of.shape) * of.shape.chunks(); }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shape& shape = of.shape;
    const std::int64_t chunks = shape.chunks();
    const std::int64_t column = block.index() % chunks * tile;
    const auto [head, first] = own_queries(shape, block.index() / chunks);
    TilePair at = {first, 0, block.thread() / side * each, block.thread() % side * each};
    const ScoreTiles tiles(block);
    const RowTile of_scores(block);
    float result[each][each] = {};
    const Range seen = shape.visible({first, first + tile});
    if (chunks == 1) {
      tiles.load_queries(block, of, head, first, 0);
    }
    for (at.key = seen.begin / tile * tile; at.key < seen.end; at.key += tile) {
      float scores[each][each] = {};
      float gradients[each][each] = {};
      tiles.add_scores<true>(block, of, head, at, column, scores, gradients);
      differentiate_tile(of, head, at, scores, gradients);
      write_tile(of_scores, at.row, at.column, gradients);
      block.sync();
      add_product(of_scores, tiles.keys, at.row, at.column, result);
    }
    store(dq, head.begin(dq), first + at.row, shape.queries, column + at.column, shape.width, result);
  }
};

/// Computes dk and dv. A block has a tile of keys of one head, and a part of the width. It sums over all queries of the
/// group's heads.
struct GradientKeys {
  GradientTensors of;
  HeadRows dk;
  HeadRows dv;

  [[nodiscard]] static std::size_t shared() { return ScoreTiles::bytes() + RowTile::bytes(); }
  [[nodiscard]] std::int64_t blocks() const {
    const Shape& shape = of.shape;
    return shape.batch * shape.heads * shape.key_tiles() * shape.chunks();
  }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shape& shape = of.shape;
    const std::int64_t chunks = shape.chunks();
    const std::int64_t heads = shape.batch * shape.heads;
    const std::int64_t column = block.index() % chunks * tile;
    const std::int64_t number = block.index() / chunks % heads;
    Head head = {number / shape.heads, number % shape.heads, 0};
    // The first blocks get the first keys, which with a causal mask are seen by the most queries.
    const std::int64_t first = block.index() / chunks / heads * tile;
    TilePair at = {0, first, block.thread() / side * each, block.thread() % side * each};
    const ScoreTiles tiles(block);
    const RowTile factors(block);  // one tile for both products: GPUs with 99 KiB per block have no room for two
    float result_k[each][each] = {};
    float result_v[each][each] = {};
    const Range seeing = shape.seeing({first, first + tile});
    if (chunks == 1) {
      tiles.load_keys(block, of, head, first, 0);
    }
    const Range group = shape.heads_of_group(head.head);
    for (head.group = group.begin; head.group < group.end; ++head.group) {
      for (at.query = seeing.begin / tile * tile; at.query < seeing.end; at.query += tile) {
        float scores[each][each] = {};
        float gradients[each][each] = {};
        tiles.add_scores<false>(block, of, head, at, column, scores, gradients);
        differentiate_tile(of, head, at, scores, gradients);
        write_tile(factors, at.row, at.column, scores);
        block.sync();
        add_transposed_product(factors, tiles.douts, at.row, at.column, result_v);
        block.sync();
        write_tile(factors, at.row, at.column, gradients);
        block.sync();
        add_transposed_product(factors, tiles.queries, at.row, at.column, result_k);
      }
    }
    head.group = 0;
    store(dk, head.begin(dk), first + at.row, shape.keys, column + at.column, shape.width, result_k);
    store(dv, head.begin(dv), first + at.row, shape.keys, column + at.column, shape.width, result_v);
  }
};

}  // namespace

void launch_gradient_tiles(const KernelCall& call, const GradientTensors& of, const Gradients& to) {
  launch_gradients(call, threads, GradientQueries{of, to.dq}, GradientKeys{of, to.dk, to.dv});
}

}  // namespace shardrun::device::cuda::attention
