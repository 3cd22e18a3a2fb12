#include "core/device/cuda/attention.h"
#include "core/device/cuda/attention_matrices.h"

// The gradient of attention. Dao et al. 2022, arXiv:2205.14135, appendix B.4:
//   P_ij = exp(score_ij - lse_i)     dP_ij = keep_ij (dO_i . v_j)     D_i = dO_i . O_i
//   dS_ij = P_ij (dP_ij - D_i) scale
//   dq_i = sum over j of dS_ij k_j     dk_j = sum over i of dS_ij q_i     dv_j = sum over i of keep_ij P_ij dO_i
// One kernel goes over the queries for each tile of keys, another over the keys for each tile of queries. Both compute
// the scores again. So each result is summed up by one thread, in one order, without atomic additions.

namespace shardrun::device::cuda {
namespace {

using attention::add_dots;
using attention::add_product;
using attention::add_transposed_product;
using attention::each;
using attention::Four;
using attention::Head;
using attention::HeadRows;
using attention::join_row;
using attention::KeyTile;
using attention::Range;
using attention::RowTile;

/// The tensors of attention, and what both kernels compute of them.
struct GradientTensors {
  attention::Shape shape;
  HeadRows q;
  HeadRows k;
  HeadRows v;
  HeadRows out;  ///< and the gradient of it
  Reals dout;
  Reals lse;
  float* dout_out;  ///< D_i, laid out as log-sum-exp

  [[nodiscard]] SHARDRUN_ON_DEVICE HeadRows gradient_of_out() const {
    HeadRows rows = out;
    rows.data = dout;
    return rows;
  }
};

/// D_i of every query, a warp each.
struct DoutOut {
  GradientTensors of;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const attention::Shape& shape = of.shape;
    const std::int64_t row = block.index() * block.warps() + block.warp();
    if (row >= shape.batch * shape.heads * shape.group * shape.queries) {
      return;
    }
    const Head head = shape.head_of(row / shape.queries);
    const std::int64_t begin = head.begin(of.out) + row % shape.queries * of.out.of_row;
    float sum = 0;
    for (std::int64_t d = block.lane(); d < shape.width; d += warp_size) {
      sum += of.out.data.get(begin + d) * of.dout.get(begin + d);
    }
    sum = warp_sum(block, sum);
    if (block.lane() == 0) {
      of.dout_out[row] = sum;
    }
  }
};

/// The tiles from which scores and their gradients are computed.
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
};

/// The place of a thread in a pair of tiles of queries and keys.
struct TilePair {
  std::int64_t query;  ///< of the tile's first row
  std::int64_t key;    ///< of the tile's first column
  int row;             ///< of the thread, in the tile
  int column;
};

/// What the gradient needs of a query.
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

/// Makes keep P of a score, and dS of dO . v.
SHARDRUN_ON_DEVICE inline void differentiate(const attention::Shape& shape, const QueryFacts& at, std::int64_t key,
                                             float keep, float& score, float& gradient) {
  const bool is_visible = at.visible.begin <= key && key < at.visible.end;
  const float mask = shape.has_mask && is_visible ? shape.mask.get(at.query * shape.keys + key) : 0.0F;
  const float p = is_visible ? FloatMath::exp(score * shape.scale + mask - at.lse) : 0.0F;
  gradient = p == 0.0F ? 0.0F : p * (keep * gradient - at.dout_out) * shape.scale;
  score = keep == 0.0F ? 0.0F : p * keep;
}

/// The same of a thread's part of a tile.
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

SHARDRUN_ON_DEVICE inline void write_tile(const RowTile& to, int row, int column, const float (&values)[each][each]) {
  SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
    Four four;
    SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) { four.of[c] = values[r][c]; }
    to.at(row + r, column / 4) = four;
  }
}

/// dq. A block has a tile of queries of one head, and a part of the width.
struct GradientQueries {
  GradientTensors of;
  HeadRows dq;

  [[nodiscard]] static std::size_t shared() { return ScoreTiles::bytes() + RowTile::bytes(); }
  [[nodiscard]] std::int64_t blocks() const {
    const attention::Shape& shape = of.shape;
    return shape.batch * shape.heads * shape.group * shape.query_tiles() * shape.chunks();
  }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const attention::Shape& shape = of.shape;
    const std::int64_t chunks = shape.chunks();
    const std::int64_t heads = shape.batch * shape.heads * shape.group;
    const std::int64_t column = block.index() % chunks * attention::tile;
    const Head head = shape.head_of(block.index() / chunks % heads);
    const std::int64_t first = (shape.query_tiles() - 1 - block.index() / chunks / heads) * attention::tile;
    TilePair at = {first, 0, block.thread() / attention::side * each, block.thread() % attention::side * each};
    const ScoreTiles tiles(block);
    const RowTile of_scores(block);
    float result[each][each] = {};
    const Range seen = shape.visible({first, first + attention::tile});
    if (chunks == 1) {
      tiles.load_queries(block, of, head, first, 0);
    }
    for (at.key = seen.begin / attention::tile * attention::tile; at.key < seen.end; at.key += attention::tile) {
      float scores[each][each] = {};
      float gradients[each][each] = {};
      for (std::int64_t i = 0; i < chunks; ++i) {
        // The block's own part of the width last, because the keys' stay in shared memory for the product.
        const std::int64_t d = (column / attention::tile + 1 + i) % chunks * attention::tile;
        block.sync();
        if (chunks > 1) {
          tiles.load_queries(block, of, head, first, d);
        }
        tiles.load_keys(block, of, head, at.key, d);
        block.sync();
        add_dots(tiles.queries, tiles.keys, at.row, at.column, scores);
        add_dots(tiles.douts, tiles.values, at.row, at.column, gradients);
      }
      differentiate_tile(of, head, at, scores, gradients);
      write_tile(of_scores, at.row, at.column, gradients);
      block.sync();
      add_product(of_scores, tiles.keys, at.row, at.column, result);
    }
    attention::store(dq, head.begin(dq), first + at.row, shape.queries, column + at.column, shape.width, result);
  }
};

/// dk and dv. A block has a tile of keys of one head of keys, and a part of the width. It adds up what all queries of
/// the group's heads give.
struct GradientKeys {
  GradientTensors of;
  HeadRows dk;
  HeadRows dv;

  [[nodiscard]] static std::size_t shared() { return ScoreTiles::bytes() + RowTile::bytes(); }
  [[nodiscard]] std::int64_t blocks() const {
    const attention::Shape& shape = of.shape;
    return shape.batch * shape.heads * shape.key_tiles() * shape.chunks();
  }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const attention::Shape& shape = of.shape;
    const std::int64_t chunks = shape.chunks();
    const std::int64_t heads = shape.batch * shape.heads;
    const std::int64_t column = block.index() % chunks * attention::tile;
    const std::int64_t number = block.index() / chunks % heads;
    Head head = {number / shape.heads, number % shape.heads, 0};
    // The first keys first: of a causal mask most queries see them.
    const std::int64_t first = block.index() / chunks / heads * attention::tile;
    TilePair at = {0, first, block.thread() / attention::side * each, block.thread() % attention::side * each};
    const ScoreTiles tiles(block);
    const RowTile factors(block);  // one tile for both products: GPUs with 99 KiB for a block have no room for two
    float result_k[each][each] = {};
    float result_v[each][each] = {};
    const Range seeing = shape.seeing({first, first + attention::tile});
    if (chunks == 1) {
      tiles.load_keys(block, of, head, first, 0);
    }
    for (head.group = 0; head.group < shape.group; ++head.group) {
      for (at.query = seeing.begin / attention::tile * attention::tile; at.query < seeing.end;
           at.query += attention::tile) {
        float scores[each][each] = {};
        float gradients[each][each] = {};
        for (std::int64_t i = 0; i < chunks; ++i) {
          const std::int64_t d = (column / attention::tile + 1 + i) % chunks * attention::tile;  // its own part last
          block.sync();
          if (chunks > 1) {
            tiles.load_keys(block, of, head, first, d);
          }
          tiles.load_queries(block, of, head, at.query, d);
          block.sync();
          add_dots(tiles.queries, tiles.keys, at.row, at.column, scores);
          add_dots(tiles.douts, tiles.values, at.row, at.column, gradients);
        }
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
    attention::store(dk, head.begin(dk), first + at.row, shape.keys, column + at.column, shape.width, result_k);
    attention::store(dv, head.begin(dv), first + at.row, shape.keys, column + at.column, shape.width, result_v);
  }
};

/// Of one fragment, what a lane needs besides scores. Of scores, the rows are queries; of transposed scores, keys.
struct FragmentFacts {
  const attention::Seen (&seen)[2];  ///< of rows g and g + 8: the columns from the lane's first on
  int column;                        ///< from there on
  std::int64_t query;                ///< of the first element
  std::int64_t key;
  const float (&lse)[2];  ///< of the two queries, in units of ln 2
  const float (&dout_out)[2];
  const FragmentC& keep;
};

/// By tensor cores: makes keep P of scores, and dS of dO . v, of a fragment. `all_visible`: each query sees each key,
/// and there is no mask.
template <bool is_plain, bool all_visible, bool is_transposed>
SHARDRUN_ON_DEVICE inline void differentiate_fragment(const attention::Shape& shape, const FragmentFacts& at,
                                                      FragmentC& scores, FragmentC& gradients) {
  const float scale = shape.scale * attention::log2_e;
  const bool drops = !is_plain && shape.stream.drops();
  SHARDRUN_UNROLLED for (int i = 0; i < 4; ++i) {
    const int of_query = is_transposed ? i % 2 : i / 2;
    float exponent = scores.of[i] * scale - at.lse[of_query];
    if constexpr (!all_visible) {
      const bool is_visible = at.seen[i / 2].has(at.column + i % 2);
      if (!is_plain && shape.has_mask && is_visible) {
        const std::int64_t query = at.query + (is_transposed ? i % 2 : i / 2 * 8);
        const std::int64_t key = at.key + (is_transposed ? i / 2 * 8 : i % 2);
        const bool exists = query < shape.queries && key < shape.keys;
        exponent += exists ? shape.mask.get(query * shape.keys + key) * attention::log2_e : 0.0F;
      }
      exponent = is_visible ? exponent : -HUGE_VALF;
    }
    const float p = attention::power_of_two(exponent);
    const float of_p = (drops ? at.keep.of[i] * gradients.of[i] : gradients.of[i]) - at.dout_out[of_query];
    gradients.of[i] = !all_visible && p == 0.0F ? 0.0F : p * of_p * shape.scale;
    scores.of[i] = drops ? (at.keep.of[i] == 0.0F ? 0.0F : p * at.keep.of[i]) : p;
  }
}

/// dq of bfloat16, by tensor cores. `width`: of heads, or more. `count`: fragments of 16 queries that a warp has.
/// `step`: keys of a tile. `is_plain`: there is neither a mask nor dropout, and
/// rows are read in eights. The others take more registers.
template <int width, int count, int step, bool is_plain>
struct GradientQueriesMatrices {
  static constexpr int warp_rows = count * attention::fragment_rows;
  static constexpr int rows = attention::warps * warp_rows;
  using QueryTile = attention::MatrixTile<rows, width>;
  using TwoTiles = attention::MatrixTile<2 * step, width>;

  GradientTensors of;
  HeadRows dq;

  [[nodiscard]] static std::size_t shared() { return 2 * QueryTile::bytes() + 2 * TwoTiles::bytes(); }
  [[nodiscard]] std::int64_t blocks() const {
    return of.shape.batch * of.shape.heads * of.shape.group * of.shape.query_tiles(rows);
  }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const attention::Shape& shape = of.shape;
    const std::int64_t heads = shape.batch * shape.heads * shape.group;
    const Head head = shape.head_of(block.index() % heads);
    const std::int64_t first = (shape.query_tiles(rows) - 1 - block.index() / heads) * rows;
    const int warp_row = block.warp() * warp_rows;
    const std::int64_t begin = first + warp_row;
    const std::int64_t query = begin + block.lane() / 4;
    const QueryTile queries(block);
    const QueryTile douts(block);
    const TwoTiles keys(block);
    const TwoTiles values(block);
    const HeadRows dout = of.gradient_of_out();
    const auto load = [&](std::int64_t key, int to) {
      keys.template load<step, is_plain>(block, of.k, head.begin(of.k), key, shape.keys, shape.width, to);
      values.template load<step, is_plain>(block, of.v, head.begin(of.v), key, shape.keys, shape.width, to);
    };
    float lses[count][2];
    float dout_outs[count][2];
    SHARDRUN_UNROLLED for (int i = 0; i < 2 * count; ++i) {
      const std::int64_t row = query + 8 * i;
      const std::int64_t at = shape.lse_row(head) + row;
      lses[i / 2][i % 2] = row < shape.queries ? of.lse.get(at) * attention::log2_e : 0.0F;
      dout_outs[i / 2][i % 2] = row < shape.queries ? of.dout_out[at] : 0.0F;
    }
    FragmentC result[count][width / 8] = {};
    const Range seen = shape.visible({first, first + rows});
    const Range own = {begin, begin + warp_rows};
    const Range seen_by_warp = shape.visible(own);
    queries.template load<rows, is_plain>(block, of.q, head.begin(of.q), first, shape.queries, shape.width);
    douts.template load<rows, is_plain>(block, dout, head.begin(dout), first, shape.queries, shape.width);
    std::int64_t key = seen.begin / step * step;
    load(key, 0);
    for (int at = 0; key < seen.end; key += step, at = step - at) {
      block.wait_for_copies();
      block.sync();  // also because the other tile has been read
      if (key + step < seen.end) {
        load(key + step, step - at);
      }
      if (seen_by_warp.end <= key || key + step <= seen_by_warp.begin) {
        continue;
      }
      FragmentC scores[count][step / 8] = {};
      FragmentC gradients[count][step / 8] = {};
      attention::add_row_products(block, queries, warp_row, keys, at, scores);
      attention::add_row_products(block, douts, warp_row, values, at, gradients);
      const bool all_visible = (is_plain || !shape.has_mask) && shape.see_all(own, {key, key + step});
      if (all_visible) {
        differentiate<true>(block, head, query, key, lses, dout_outs, scores, gradients);
      } else {
        differentiate<false>(block, head, query, key, lses, dout_outs, scores, gradients);
      }
      attention::add_rounded_product(block, gradients, keys, at, result);
    }
    block.wait_for_copies();  // of queries that see no key
    SHARDRUN_UNROLLED for (int f = 0; f < count; ++f) {
      attention::store_rows<width>(block, dq, head.begin(dq), begin + f * attention::fragment_rows, shape.queries,
                                   shape.width, result[f]);
    }
  }

 private:
  /// `query`: of the lane's first row. `key`: of the tile's first column.
  template <bool all_visible>
  SHARDRUN_ON_DEVICE void differentiate(Block& block, const Head& head, std::int64_t query, std::int64_t key,
                                        const float (&lses)[count][2], const float (&dout_outs)[count][2],
                                        FragmentC (&scores)[count][step / 8],
                                        FragmentC (&gradients)[count][step / 8]) const {
    const std::int64_t column = key + block.lane() % 4 * 2;
    SHARDRUN_UNROLLED for (int f = 0; f < count; ++f) {
      const std::int64_t row = query + f * attention::fragment_rows;
      const attention::Seen seen[] = {of.shape.seen_keys(row, column), of.shape.seen_keys(row + 8, column)};
      SHARDRUN_UNROLLED for (int n = 0; n < step / 8; ++n) {
        FragmentC keep = {};
        if (!is_plain && of.shape.stream.drops()) {
          keep = attention::dropout_factors(block, of.shape, head, row, column + 8 * n);
        }
        differentiate_fragment<is_plain, all_visible, false>(
            of.shape, {seen, 8 * n, row, column + 8 * n, lses[f], dout_outs[f], keep}, scores[f][n], gradients[f][n]);
      }
    }
  }
};

/// dk and dv of bfloat16, by tensor cores. Scores are computed transposed: a warp has `count` fragments of 16 keys.
/// `step`: queries of a tile.
template <int width, int count, int step, bool is_plain>
struct GradientKeysMatrices {
  static constexpr int warp_rows = count * attention::fragment_rows;
  static constexpr int rows = attention::warps * warp_rows;
  using OwnTile = attention::MatrixTile<rows, width>;
  using TwoTiles = attention::MatrixTile<2 * step, width>;

  GradientTensors of;
  HeadRows dk;
  HeadRows dv;

  [[nodiscard]] static std::size_t shared() {
    return 2 * OwnTile::bytes() + 2 * TwoTiles::bytes() + 2 * shared_bytes<float>(2 * step);
  }
  [[nodiscard]] std::int64_t blocks() const { return of.shape.batch * of.shape.heads * of.shape.key_tiles(rows); }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const attention::Shape& shape = of.shape;
    const std::int64_t heads = shape.batch * shape.heads;
    const std::int64_t of_heads = block.index() % heads;
    const Head own_head = {of_heads / shape.heads, of_heads % shape.heads, 0};
    const std::int64_t first = block.index() / heads * rows;
    const int warp_row = block.warp() * warp_rows;
    const std::int64_t begin = first + warp_row;
    const OwnTile keys(block);
    const OwnTile values(block);
    const TwoTiles queries(block);
    const TwoTiles douts(block);
    const Shared<float> lses = block.shared<float>(2 * step);
    const Shared<float> dout_outs = block.shared<float>(2 * step);
    const HeadRows dout = of.gradient_of_out();
    const auto load = [&](const Head& head, std::int64_t query, int to) {
      queries.template load<step, is_plain>(block, of.q, head.begin(of.q), query, shape.queries, shape.width, to);
      douts.template load<step, is_plain>(block, dout, head.begin(dout), query, shape.queries, shape.width, to);
      if (block.thread() < step) {
        const std::int64_t row = query + block.thread();
        const std::int64_t at = shape.lse_row(head) + row;
        lses[to + block.thread()] = row < shape.queries ? of.lse.get(at) * attention::log2_e : 0.0F;
        dout_outs[to + block.thread()] = row < shape.queries ? of.dout_out[at] : 0.0F;
      }
    };
    keys.template load<rows, is_plain>(block, of.k, own_head.begin(of.k), first, shape.keys, shape.width);
    values.template load<rows, is_plain>(block, of.v, own_head.begin(of.v), first, shape.keys, shape.width);
    FragmentC result_k[count][width / 8] = {};
    FragmentC result_v[count][width / 8] = {};
    const Range seeing = shape.seeing({first, first + rows});
    const Range own = {begin, begin + warp_rows};
    const Range seeing_warp = shape.seeing(own);
    // Steps: the tiles of queries of one head after those of another.
    const std::int64_t first_query = seeing.begin / step * step;
    const auto steps = static_cast<int>((seeing.end - first_query + step - 1) / step);
    const int all_steps = steps * static_cast<int>(shape.group);
    if (all_steps > 0) {
      load(own_head, first_query, 0);
    }
    for (int number = 0, group = 0, of_group = 0, at = 0; number < all_steps; ++number, at = step - at) {
      const std::int64_t query = first_query + of_group * step;
      const Head head = {own_head.sample, own_head.head, group};
      const bool is_last = ++of_group == steps;
      of_group = is_last ? 0 : of_group;
      group += is_last ? 1 : 0;
      block.wait_for_copies();
      block.sync();  // also because the other tile has been read
      if (number + 1 < all_steps) {
        load({own_head.sample, own_head.head, group}, first_query + of_group * step, step - at);
      }
      if (seeing_warp.end <= query || query + step <= seeing_warp.begin) {
        continue;
      }
      FragmentC scores[count][step / 8] = {};
      FragmentC gradients[count][step / 8] = {};
      attention::add_row_products(block, keys, warp_row, queries, at, scores);
      attention::add_row_products(block, values, warp_row, douts, at, gradients);
      const bool all_visible = (is_plain || !shape.has_mask) && shape.see_all({query, query + step}, own);
      const std::int64_t key = begin + block.lane() / 4;
      if (all_visible) {
        differentiate<true>(block, head, query, key, at, lses, dout_outs, scores, gradients);
      } else {
        differentiate<false>(block, head, query, key, at, lses, dout_outs, scores, gradients);
      }
      attention::add_rounded_product(block, gradients, queries, at, result_k);
      attention::add_rounded_product(block, scores, douts, at, result_v);
    }
    block.wait_for_copies();  // of keys that no query sees
    SHARDRUN_UNROLLED for (int f = 0; f < count; ++f) {
      const std::int64_t row = begin + f * attention::fragment_rows;
      attention::store_rows<width>(block, dk, own_head.begin(dk), row, shape.keys, shape.width, result_k[f]);
      attention::store_rows<width>(block, dv, own_head.begin(dv), row, shape.keys, shape.width, result_v[f]);
    }
  }

 private:
  /// `query`: of the tile's first column. `key`: of the lane's first row. `at`: of the tile in shared memory.
  template <bool all_visible>
  SHARDRUN_ON_DEVICE void differentiate(Block& block, const Head& head, std::int64_t query, std::int64_t key, int at,
                                        const Shared<float>& lses, const Shared<float>& dout_outs,
                                        FragmentC (&scores)[count][step / 8],
                                        FragmentC (&gradients)[count][step / 8]) const {
    const int first = block.lane() % 4 * 2;
    const std::int64_t column = query + first;
    SHARDRUN_UNROLLED for (int f = 0; f < count; ++f) {
      const std::int64_t row = key + f * attention::fragment_rows;
      const attention::Seen seen[] = {of.shape.seeing_queries(row, column), of.shape.seeing_queries(row + 8, column)};
      SHARDRUN_UNROLLED for (int n = 0; n < step / 8; ++n) {
        FragmentC keep = {};
        if (!is_plain && of.shape.stream.drops()) {
          keep = attention::transposed_dropout_factors(block, of.shape, head, column + 8 * n, row);
        }
        const int place = at + first + 8 * n;
        const float lse[] = {lses[place], lses[place + 1]};
        const float dout_out[] = {dout_outs[place], dout_outs[place + 1]};
        differentiate_fragment<is_plain, all_visible, true>(
            of.shape, {seen, 8 * n, column + 8 * n, row, lse, dout_out, keep}, scores[f][n], gradients[f][n]);
      }
    }
  }
};

template <typename OfQueries, typename OfKeys>
void launch_gradients(const KernelCall& call, int threads, const OfQueries& of_queries, const OfKeys& of_keys) {
  launch(call, of_queries.blocks(), threads, OfQueries::shared(), of_queries);
  launch(call, of_keys.blocks(), threads, OfKeys::shared(), of_keys);
}

void run_gradient(const KernelCall& call, const GradientTensors& of, const HeadRows& dq, const HeadRows& dk,
                  const HeadRows& dv) {
  const attention::Shape& shape = of.shape;
  constexpr int warps = 4;
  const std::int64_t rows = shape.batch * shape.heads * shape.group * shape.queries;
  launch(call, (rows + warps - 1) / warps, warps * warp_size, 0, DoutOut{of});
  const bool matrices = attention::all_bfloat({&of.q, &of.k, &of.v, &of.out, &dq, &dk, &dv}) && of.dout.is_bfloat;
  constexpr int few = attention::warps * warp_size;
  constexpr int narrow = attention::widest / 2;
  constexpr int wide = attention::widest;
  bool is_plain = !shape.has_mask && !shape.stream.drops();
  for (const HeadRows* rows : {&of.q, &of.k, &of.v, &of.out}) {
    is_plain = is_plain && rows->in_eights;
  }
  if (matrices && shape.width <= narrow && is_plain) {
    launch_gradients(call, few, GradientQueriesMatrices<narrow, 2, 32, true>{of, dq},
                     GradientKeysMatrices<narrow, 2, 32, true>{of, dk, dv});
  } else if (matrices && shape.width <= narrow) {
    launch_gradients(call, few, GradientQueriesMatrices<narrow, 1, 64, false>{of, dq},
                     GradientKeysMatrices<narrow, 1, 64, false>{of, dk, dv});
  } else if (matrices && shape.width <= wide && is_plain) {
    launch_gradients(call, few, GradientQueriesMatrices<wide, 1, 32, true>{of, dq},
                     GradientKeysMatrices<wide, 1, 32, true>{of, dk, dv});
  } else if (matrices && shape.width <= wide) {
    launch_gradients(call, few, GradientQueriesMatrices<wide, 1, 32, false>{of, dq},
                     GradientKeysMatrices<wide, 1, 16, false>{of, dk, dv});
  } else {
    launch_gradients(call, attention::threads, GradientQueries{of, dq}, GradientKeys{of, dk, dv});
  }
}

/// The rows of `out` and of its gradient.
HeadRows rows_of_both(HeadRows out, const TensorView& dout) {
  out.in_packs = out.in_packs && is_aligned(dout);
  out.in_eights = out.in_eights && is_aligned(dout);
  return out;
}

/// qkv, out, lse, dout -> dqkv
void packed_attention_gradient(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const TensorView& dqkv = call.outputs[0];
  const HeadRows out = rows_of_both(attention::key_rows(call.inputs[1]), call.inputs[3]);
  run_gradient(call,
               {attention::packed_shape(call), attention::part_rows(qkv, 0), attention::part_rows(qkv, 1),
                attention::part_rows(qkv, 2), out, reals(call.inputs[3]), reals(call.inputs[2]),
                reinterpret_cast<float*>(call.scratch.data())},
               attention::part_rows(dqkv, 0), attention::part_rows(dqkv, 1), attention::part_rows(dqkv, 2));
}

/// q, k, v, out, lse, dout (, mask) -> dq, dk, dv
void separate_attention_gradient(const KernelCall& call) {
  const HeadRows out = rows_of_both(attention::query_rows(call.inputs[3]), call.inputs[5]);
  run_gradient(call,
               {attention::separate_shape(call, 6), attention::query_rows(call.inputs[0]),
                attention::key_rows(call.inputs[1]), attention::key_rows(call.inputs[2]), out, reals(call.inputs[5]),
                reals(call.inputs[4]), reinterpret_cast<float*>(call.scratch.data())},
               attention::query_rows(call.outputs[0]), attention::key_rows(call.outputs[1]),
               attention::key_rows(call.outputs[2]));
}

/// D_i, a number for each of log-sum-exp.
std::size_t packed_gradient_scratch(const graph::OpShape& shape, int) {
  return static_cast<std::size_t>(graph::element_count(shape.inputs[2])) * sizeof(float);
}
std::size_t separate_gradient_scratch(const graph::OpShape& shape, int) {
  return static_cast<std::size_t>(graph::element_count(shape.inputs[4])) * sizeof(float);
}

const AddKernels attention_gradients(
    {{"attention_gradient", {.run = packed_attention_gradient, .scratch_bytes = packed_gradient_scratch}},
     {"scaled_dot_product_attention_gradient",
      {.run = separate_attention_gradient, .scratch_bytes = separate_gradient_scratch}}});

}  // namespace
}  // namespace shardrun::device::cuda
