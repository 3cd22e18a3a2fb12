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

/// Makes keep P of a score, and dS of dO . v. `exponent`: score scale + mask - log-sum-exp. `rounded`: P becomes
/// bfloat16.
template <bool rounded>
SHARDRUN_ON_DEVICE inline void differentiate(const attention::Shape& shape, float exponent, float dout_out, float keep,
                                             float& score, float& gradient) {
  const float p = rounded ? attention::exponential(exponent) : FloatMath::exp(exponent);
  gradient = p == 0.0F ? 0.0F : p * (keep * gradient - dout_out) * shape.scale;
  score = keep == 0.0F ? 0.0F : p * keep;
}
/// The same of a score without scale, of a key that the query may not see.
template <bool rounded>
SHARDRUN_ON_DEVICE inline void differentiate_seen(const attention::Shape& shape, const QueryFacts& at,
                                                  std::int64_t key, float keep, float& score, float& gradient) {
  const bool is_visible = at.visible.begin <= key && key < at.visible.end;
  const float mask = shape.has_mask && is_visible ? shape.mask.get(at.query * shape.keys + key) : 0.0F;
  const float exponent = is_visible ? score * shape.scale + mask - at.lse : -HUGE_VALF;
  differentiate<rounded>(shape, exponent, at.dout_out, keep, score, gradient);
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
      differentiate_seen<false>(of.shape, facts, at.key + at.column + c, kept[c], scores[r][c], gradients[r][c]);
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
    const Range seen = shape.visible({first, attention::smaller(first + attention::tile, shape.queries)});
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
    const Range seeing = shape.seeing({first, attention::smaller(first + attention::tile, shape.keys)});
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

/// dq of bfloat16, by tensor cores. `width`: of heads, or more. `step`: keys of a tile.
template <int width, int step>
struct GradientQueriesMatrices {
  using QueryTile = attention::MatrixTile<attention::tile, width>;
  using StepTile = attention::MatrixTile<step, width>;

  GradientTensors of;
  HeadRows dq;

  [[nodiscard]] static std::size_t shared() { return 2 * QueryTile::bytes() + 2 * StepTile::bytes(); }
  [[nodiscard]] std::int64_t blocks() const {
    return of.shape.batch * of.shape.heads * of.shape.group * of.shape.query_tiles();
  }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const attention::Shape& shape = of.shape;
    const std::int64_t heads = shape.batch * shape.heads * shape.group;
    const Head head = shape.head_of(block.index() % heads);
    const std::int64_t first = (shape.query_tiles() - 1 - block.index() / heads) * attention::tile;
    const int warp_row = block.warp() * attention::warp_rows;
    const QueryTile queries(block);
    const QueryTile douts(block);
    const StepTile keys(block);
    const StepTile values(block);
    const HeadRows dout = of.gradient_of_out();
    queries.load(block, of.q, head.begin(of.q), first, shape.queries, shape.width);
    douts.load(block, dout, head.begin(dout), first, shape.queries, shape.width);
    const std::int64_t query = first + warp_row + block.lane() / 4;
    const QueryFacts facts[2] = {facts_of(of, head, query), facts_of(of, head, query + 8)};
    FragmentC result[width / 8] = {};
    const Range seen = shape.visible({first, attention::smaller(first + attention::tile, shape.queries)});
    for (std::int64_t key = seen.begin / step * step; key < seen.end; key += step) {
      block.sync();
      keys.load(block, of.k, head.begin(of.k), key, shape.keys, shape.width);
      values.load(block, of.v, head.begin(of.v), key, shape.keys, shape.width);
      block.sync();
      FragmentC scores[step / 8] = {};
      FragmentC gradients[step / 8] = {};
      attention::add_row_products(block, queries, warp_row, keys, scores);
      attention::add_row_products(block, douts, warp_row, values, gradients);
      const Range own = {first + warp_row, first + warp_row + attention::warp_rows};
      const bool all_visible = !shape.has_mask && shape.see_all(own, {key, key + step});
      SHARDRUN_UNROLLED for (int n = 0; n < step / 8; ++n) {
        const std::int64_t column = key + 8 * n + block.lane() % 4 * 2;
        FragmentC keep = {{1, 1, 1, 1}};
        if (shape.stream.drops()) {
          keep = attention::dropout_factors(block, shape, head, query, column);
        }
        if (all_visible) {
          SHARDRUN_UNROLLED for (int i = 0; i < 4; ++i) {
            const QueryFacts& at = facts[i / 2];
            differentiate<true>(shape, scores[n].of[i] * shape.scale - at.lse, at.dout_out, keep.of[i],
                                scores[n].of[i], gradients[n].of[i]);
          }
        } else {
          SHARDRUN_UNROLLED for (int i = 0; i < 4; ++i) {
            differentiate_seen<true>(shape, facts[i / 2], column + i % 2, keep.of[i], scores[n].of[i],
                                     gradients[n].of[i]);
          }
        }
      }
      attention::add_rounded_product<step, width>(block, gradients, keys, result);
    }
    attention::store_rows<width>(block, dq, head.begin(dq), first + warp_row, shape.queries, shape.width, result);
  }
};

/// dk and dv of bfloat16, by tensor cores. Scores are computed transposed: a warp has 16 keys. `step`: queries of a
/// tile.
template <int width, int step>
struct GradientKeysMatrices {
  using OwnTile = attention::MatrixTile<attention::tile, width>;
  using StepTile = attention::MatrixTile<step, width>;

  GradientTensors of;
  HeadRows dk;
  HeadRows dv;

  [[nodiscard]] static std::size_t shared() {
    return 2 * OwnTile::bytes() + 2 * StepTile::bytes() + 2 * shared_bytes<float>(step);
  }
  [[nodiscard]] std::int64_t blocks() const { return of.shape.batch * of.shape.heads * of.shape.key_tiles(); }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const attention::Shape& shape = of.shape;
    const std::int64_t heads = shape.batch * shape.heads;
    const std::int64_t number = block.index() % heads;
    Head head = {number / shape.heads, number % shape.heads, 0};
    const std::int64_t first = block.index() / heads * attention::tile;
    const int warp_row = block.warp() * attention::warp_rows;
    const OwnTile keys(block);
    const OwnTile values(block);
    const StepTile queries(block);
    const StepTile douts(block);
    const Shared<float> lses = block.shared<float>(step);
    const Shared<float> dout_outs = block.shared<float>(step);
    const HeadRows dout = of.gradient_of_out();
    keys.load(block, of.k, head.begin(of.k), first, shape.keys, shape.width);
    values.load(block, of.v, head.begin(of.v), first, shape.keys, shape.width);
    FragmentC result_k[width / 8] = {};
    FragmentC result_v[width / 8] = {};
    const Range seeing = shape.seeing({first, attention::smaller(first + attention::tile, shape.keys)});
    for (head.group = 0; head.group < shape.group; ++head.group) {
      for (std::int64_t query = seeing.begin / step * step; query < seeing.end; query += step) {
        block.sync();
        queries.load(block, of.q, head.begin(of.q), query, shape.queries, shape.width);
        douts.load(block, dout, head.begin(dout), query, shape.queries, shape.width);
        if (block.thread() < step) {
          const QueryFacts facts = facts_of(of, head, query + block.thread());
          lses[block.thread()] = facts.lse;
          dout_outs[block.thread()] = facts.dout_out;
        }
        block.sync();
        FragmentC scores[step / 8] = {};
        FragmentC gradients[step / 8] = {};
        attention::add_row_products(block, keys, warp_row, queries, scores);
        attention::add_row_products(block, values, warp_row, douts, gradients);
        const std::int64_t key = first + warp_row + block.lane() / 4;
        const Range own = {first + warp_row, first + warp_row + attention::warp_rows};
        const bool all_visible = !shape.has_mask && shape.see_all({query, query + step}, own);
        SHARDRUN_UNROLLED for (int n = 0; n < step / 8; ++n) {
          const int column = 8 * n + block.lane() % 4 * 2;
          FragmentC keep = {{1, 1, 1, 1}};
          if (shape.stream.drops()) {
            keep = attention::transposed_dropout_factors(block, shape, head, query + column, key);
          }
          if (all_visible) {
            SHARDRUN_UNROLLED for (int i = 0; i < 4; ++i) {
              const int place = column + i % 2;
              differentiate<true>(shape, scores[n].of[i] * shape.scale - lses[place], dout_outs[place], keep.of[i],
                                  scores[n].of[i], gradients[n].of[i]);
            }
            continue;
          }
          SHARDRUN_UNROLLED for (int e = 0; e < 2; ++e) {
            const std::int64_t at = query + column + e;
            const QueryFacts facts = {at, at < shape.queries ? shape.visible(at) : Range{0, 0}, lses[column + e],
                                      dout_outs[column + e]};
            SHARDRUN_UNROLLED for (int half = 0; half < 2; ++half) {
              const int i = 2 * half + e;
              differentiate_seen<true>(shape, facts, key + 8 * half, keep.of[i], scores[n].of[i], gradients[n].of[i]);
            }
          }
        }
        attention::add_rounded_product<step, width>(block, gradients, queries, result_k);
        attention::add_rounded_product<step, width>(block, scores, douts, result_v);
      }
    }
    head.group = 0;
    attention::store_rows<width>(block, dk, head.begin(dk), first + warp_row, shape.keys, shape.width, result_k);
    attention::store_rows<width>(block, dv, head.begin(dv), first + warp_row, shape.keys, shape.width, result_v);
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
  if (matrices && shape.width <= narrow) {
    launch_gradients(call, few, GradientQueriesMatrices<narrow, 64>{of, dq},
                     GradientKeysMatrices<narrow, 64>{of, dk, dv});
  } else if (matrices && shape.width <= wide) {
    launch_gradients(call, few, GradientQueriesMatrices<wide, 32>{of, dq}, GradientKeysMatrices<wide, 32>{of, dk, dv});
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
