#include "core/device/cuda/attention.h"

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

/// Makes keep P and dS of scores (without scale) and of dO . v.
SHARDRUN_ON_DEVICE inline void differentiate(const GradientTensors& of, const Head& head, const TilePair& at,
                                             float (&scores)[each][each], float (&gradients)[each][each]) {
  const attention::Shape& shape = of.shape;
  SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
    const std::int64_t query = at.query + at.row + r;
    const bool exists = query < shape.queries;
    const Range visible = exists ? shape.visible(query) : Range{0, 0};
    const float lse = exists ? of.lse.get(shape.lse_row(head) + query) : 0.0F;
    const float dout_out = exists ? of.dout_out[shape.lse_row(head) + query] : 0.0F;
    float kept[each] = {1, 1, 1, 1};
    if (shape.stream.drops()) {
      shape.drop(head, query, at.key + at.column, kept);
    }
    SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) {
      const std::int64_t key = at.key + at.column + c;
      const bool is_visible = visible.begin <= key && key < visible.end;
      const float mask = shape.has_mask && is_visible ? shape.mask.get(query * shape.keys + key) : 0.0F;
      const float p = is_visible ? FloatMath::exp(scores[r][c] * shape.scale + mask - lse) : 0.0F;
      gradients[r][c] = p == 0.0F ? 0.0F : p * (kept[c] * gradients[r][c] - dout_out) * shape.scale;
      scores[r][c] = kept[c] == 0.0F ? 0.0F : p * kept[c];
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
      differentiate(of, head, at, scores, gradients);
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

  [[nodiscard]] static std::size_t shared() { return ScoreTiles::bytes() + 2 * RowTile::bytes(); }
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
    const RowTile probabilities(block);
    const RowTile of_scores(block);
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
        differentiate(of, head, at, scores, gradients);
        write_tile(probabilities, at.row, at.column, scores);
        write_tile(of_scores, at.row, at.column, gradients);
        block.sync();
        add_transposed_product(of_scores, tiles.queries, at.row, at.column, result_k);
        add_transposed_product(probabilities, tiles.douts, at.row, at.column, result_v);
      }
    }
    head.group = 0;
    attention::store(dk, head.begin(dk), first + at.row, shape.keys, column + at.column, shape.width, result_k);
    attention::store(dv, head.begin(dv), first + at.row, shape.keys, column + at.column, shape.width, result_v);
  }
};

void run_gradient(const KernelCall& call, const GradientTensors& of, const HeadRows& dq, const HeadRows& dk,
                  const HeadRows& dv) {
  const attention::Shape& shape = of.shape;
  constexpr int warps = 4;
  const std::int64_t rows = shape.batch * shape.heads * shape.group * shape.queries;
  launch(call, (rows + warps - 1) / warps, warps * warp_size, 0, DoutOut{of});
  const GradientQueries of_queries = {of, dq};
  launch(call, of_queries.blocks(), attention::threads, GradientQueries::shared(), of_queries);
  const GradientKeys of_keys = {of, dk, dv};
  launch(call, of_keys.blocks(), attention::threads, GradientKeys::shared(), of_keys);
}

/// qkv, out, lse, dout -> dqkv
void packed_attention_gradient(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const TensorView& dqkv = call.outputs[0];
  HeadRows out = attention::key_rows(call.inputs[1]);
  out.in_packs = out.in_packs && is_aligned(call.inputs[3]);
  run_gradient(call,
               {attention::packed_shape(call), attention::part_rows(qkv, 0), attention::part_rows(qkv, 1),
                attention::part_rows(qkv, 2), out, reals(call.inputs[3]), reals(call.inputs[2]),
                reinterpret_cast<float*>(call.scratch.data())},
               attention::part_rows(dqkv, 0), attention::part_rows(dqkv, 1), attention::part_rows(dqkv, 2));
}

/// q, k, v, out, lse, dout (, mask) -> dq, dk, dv
void separate_attention_gradient(const KernelCall& call) {
  HeadRows out = attention::query_rows(call.inputs[3]);
  out.in_packs = out.in_packs && is_aligned(call.inputs[5]);
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
