#include <math.h>

#include "core/device/cuda/kernels/attention_tiles.h"

namespace shardrun::device::cuda {
namespace {

using attention::add_dots;
using attention::add_product;
using attention::each;
using attention::Head;
using attention::join_row;
using attention::KeyTile;
using attention::Range;
using attention::RowTile;

/// softmax(Q K^T scale + mask) V over the keys that each query sees, and log-sum-exp of the scores. A block computes a
/// tile of queries of one head and loops over tiles of keys. It keeps the largest score of each row so far, and
/// rescales its sums when that grows (Dao et al. 2022, arXiv:2205.14135, algorithm 1). If a head is wider than a tile,
/// one block computes each part of the result's width.
struct Attend : attention::Tensors {
  [[nodiscard]] static std::size_t shared() { return 2 * RowTile::bytes() + KeyTile::bytes() + RowTile::bytes(); }
  [[nodiscard]] std::int64_t blocks() const { return attention::blocks_of_queries(shape) * shape.chunks(); }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t chunks = shape.chunks();
    const std::int64_t column = block.index() % chunks * attention::tile;
    const auto [head, first] = attention::own_queries(shape, block.index() / chunks);
    const int my_row = block.thread() / attention::side * each;
    const int my_column = block.thread() % attention::side * each;
    const RowTile queries(block);
    const KeyTile keys(block);
    const RowTile values(block);
    const RowTile probabilities(block);
    float result[each][each] = {};
    float largest[each];
    float total[each] = {};
    SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) { largest[r] = -HUGE_VALF; }
    const Range seen = shape.visible({first, first + attention::tile});
    if (chunks == 1) {
      queries.load(block, q, head.begin(q), first, shape.queries, 0, shape.width);
    }
    for (std::int64_t key = seen.begin / attention::tile * attention::tile; key < seen.end; key += attention::tile) {
      float scores[each][each] = {};
      for (std::int64_t d = 0; d < shape.width; d += attention::tile) {
        block.sync();
        if (chunks > 1) {
          queries.load(block, q, head.begin(q), first, shape.queries, d, shape.width);
        }
        keys.load(block, k, head.begin(k), key, shape.keys, d, shape.width);
        if (d == 0) {
          values.load(block, v, head.begin(v), key, shape.keys, column, shape.width);
        }
        block.sync();
        add_dots(queries, keys, my_row, my_column, scores);
      }
      SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
        const std::int64_t query = first + my_row + r;
        exponentiate(block, head, query, key + my_column, scores[r], largest[r], total[r], result[r]);
      }
      attention::write_tile(probabilities, my_row, my_column, scores);
      block.sync();
      add_product(probabilities, values, my_row, my_column, result);
    }
    SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
      const float sum = join_row(block, total[r], Plus{});
      SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) { result[r][c] /= sum; }
      const std::int64_t query = first + my_row + r;
      if (my_column == 0 && column == 0 && query < shape.queries) {
        lse.set(shape.lse_row(head) + query, largest[r] + FloatMath::log(sum));
      }
    }
    attention::store(out, head.begin(out), first + my_row, shape.queries, column + my_column, shape.width, result);
  }

 private:
  /// Turns scores into exp(score - largest) times dropout's factors. Rescales `result`, and `total`, which is this
  /// thread's part of the sum of exp(score - largest) without dropout.
  SHARDRUN_ON_DEVICE void exponentiate(Block& block, const Head& head, std::int64_t query, std::int64_t key,
                                       float (&scores)[each], float& largest, float& total,
                                       float (&result)[each]) const {
    const Range visible = query < shape.queries ? shape.visible(query) : Range{0, 0};
    float largest_here = -HUGE_VALF;
    SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) {
      const bool is_visible = visible.begin <= key + c && key + c < visible.end;
      scores[c] = is_visible ? scores[c] * shape.scale : -HUGE_VALF;
      if (shape.has_mask && is_visible) {
        scores[c] += shape.mask.get(query * shape.keys + key + c);
      }
      largest_here = Larger{}(largest_here, scores[c]);
    }
    const float grown = Larger{}(largest, join_row(block, largest_here, Larger{}));
    const float shift = grown == -HUGE_VALF ? 0.0F : grown;  // the query sees no key yet
    const float factor = FloatMath::exp(largest - shift);
    largest = grown;
    total *= factor;
    SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) {
      result[c] *= factor;
      scores[c] = FloatMath::exp(scores[c] - shift);
      total += scores[c];
    }
    if (shape.stream.drops()) {
      shape.drop(head, query, key, scores);
    }
  }
};

/// Attention of bfloat16 with tensor cores. `width`: at least the width of heads. `count`: fragments of 16 queries per
/// warp. The columns of a tile of scores are keys. Scores are multiplied by log2 e, for power_of_two().
template <int width, int count>
struct AttendMatrices : attention::Tensors {
  static constexpr int warp_rows = count * attention::fragment_rows;
  static constexpr int rows = attention::warps * warp_rows;
  static constexpr int step = attention::tile;  ///< keys per tile
  static constexpr int fragments = step / 8;
  using QueryTile = attention::MatrixTile<rows, width>;
  using TwoTiles = attention::MatrixTile<2 * step, width>;

  [[nodiscard]] static std::size_t shared() { return QueryTile::bytes() + 2 * TwoTiles::bytes(); }
  [[nodiscard]] std::int64_t blocks() const { return attention::blocks_of_queries(shape, rows); }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const attention::OwnQueries mine = attention::own_queries(shape, block.index(), rows);
    const Head& head = mine.head;
    const int warp_row = block.warp() * warp_rows;
    const std::int64_t first = mine.first + warp_row;
    const std::int64_t query = first + block.lane() / 4;  // the first of the lane's rows: every eighth of the warp
    const QueryTile queries(block);
    const TwoTiles keys(block);
    const TwoTiles values(block);
    FragmentC result[count][width / 8] = {};
    float largest[count][2];
    float total[count][2] = {};
    SHARDRUN_UNROLLED for (int i = 0; i < count; ++i) { largest[i][0] = largest[i][1] = -HUGE_VALF; }
    const Range own = {first, first + warp_rows};
    queries.load(block, q, head.begin(q), mine.first, shape.queries, shape.width);
    const auto load = [&](const attention::TilesOfRows<step>& tiles, int to) {
      keys.template load<step>(block, k, head.begin(k), tiles.row(), shape.keys, shape.width, to);
      values.template load<step>(block, v, head.begin(v), tiles.row(), shape.keys, shape.width, to);
    };
    const auto compute = [&](const attention::TilesOfRows<step>& tiles, int at) {
      const std::int64_t key = tiles.row();
      FragmentC scores[count][fragments] = {};
      attention::add_row_products(block, queries, warp_row, keys, at, scores);
      const bool all_visible = !shape.has_mask && shape.see_all(own, {key, key + step});
      SHARDRUN_UNROLLED for (int i = 0; i < count; ++i) {
        float factors[2];
        SHARDRUN_UNROLLED for (int half = 0; half < 2; ++half) {
          const std::int64_t row = query + i * attention::fragment_rows + 8 * half;
          factors[half] = exponentiate(block, row, key, all_visible, half, scores[i], largest[i][half], total[i][half]);
        }
        if (block.ballot(factors[0] != 1.0F || factors[1] != 1.0F) != 0) {
          SHARDRUN_UNROLLED for (int n = 0; n < width / 8; ++n) {
            SHARDRUN_UNROLLED for (int e = 0; e < 4; ++e) { result[i][n].of[e] *= factors[e / 2]; }
          }
        }
        if (shape.stream.drops()) {
          drop(block, head, query + i * attention::fragment_rows, key, scores[i]);
        }
      }
      attention::add_rounded_product(block, scores, values, at, result);
    };
    const attention::TilesOfRows<step> seen(shape.visible({mine.first, mine.first + rows}));
    attention::over_tiles<step>(block, seen, shape.visible(own), load, compute);
    SHARDRUN_UNROLLED for (int i = 0; i < count; ++i) {
      const std::int64_t begin = first + i * attention::fragment_rows;
      SHARDRUN_UNROLLED for (int half = 0; half < 2; ++half) {
        const float sum = attention::join_fragment_row(block, total[i][half], Plus{});
        SHARDRUN_UNROLLED for (int n = 0; n < width / 8; ++n) {
          result[i][n].of[2 * half] /= sum;
          result[i][n].of[2 * half + 1] /= sum;
        }
        const std::int64_t row = begin + block.lane() / 4 + 8 * half;
        if (block.lane() % 4 == 0 && row < shape.queries) {
          lse.set(shape.lse_row(head) + row, largest[i][half] * attention::log_2 + FloatMath::log(sum));
        }
      }
      attention::store_rows<width>(block, out, head.begin(out), begin, shape.queries, shape.width, result[i]);
    }
  }

 private:
  /// Turns the scores of a row (elements 2 `half` and 2 `half` + 1 of each fragment) into probabilities. Returns the
  /// factor by which the earlier sums must be multiplied.
  SHARDRUN_ON_DEVICE float exponentiate(Block& block, std::int64_t query, std::int64_t key, bool all_visible, int half,
                                        FragmentC (&scores)[fragments], float& largest, float& total) const {
    const float scale = shape.scale * log2_e;
    SHARDRUN_UNROLLED for (int n = 0; n < fragments; ++n) {
      SHARDRUN_UNROLLED for (int e = 0; e < 2; ++e) { scores[n].of[2 * half + e] *= scale; }
    }
    if (!all_visible) {
      const std::int64_t first = key + block.lane() % 4 * 2;
      const attention::Seen seen = shape.seen_keys(query, first);
      if (shape.has_mask) {
        add_mask(query, first, seen, half, scores);
      }
      SHARDRUN_UNROLLED for (int n = 0; n < fragments; ++n) {
        SHARDRUN_UNROLLED for (int e = 0; e < 2; ++e) {
          float& score = scores[n].of[2 * half + e];
          score = seen.has(8 * n + e) ? score : -HUGE_VALF;
        }
      }
    }
    float largest_here = -HUGE_VALF;
    SHARDRUN_UNROLLED for (int n = 0; n < fragments; ++n) {
      SHARDRUN_UNROLLED for (int e = 0; e < 2; ++e) {
        largest_here = Larger{}(largest_here, scores[n].of[2 * half + e]);
      }
    }
    const float grown = Larger{}(largest, attention::join_fragment_row(block, largest_here, Larger{}));
    const float shift = grown == -HUGE_VALF ? 0.0F : grown;  // the query sees no key yet
    const float factor = power_of_two(largest - shift);
    largest = grown;
    total *= factor;
    SHARDRUN_UNROLLED for (int n = 0; n < fragments; ++n) {
      SHARDRUN_UNROLLED for (int e = 0; e < 2; ++e) {
        float& score = scores[n].of[2 * half + e];
        score = power_of_two(score - shift);
        total += score;
      }
    }
    return factor;
  }

  SHARDRUN_ON_DEVICE void add_mask(std::int64_t query, std::int64_t key, const attention::Seen& seen, int half,
                                   FragmentC (&scores)[fragments]) const {
    SHARDRUN_UNROLLED for (int n = 0; n < fragments; ++n) {
      SHARDRUN_UNROLLED for (int e = 0; e < 2; ++e) {
        if (query < shape.queries && seen.has(8 * n + e)) {
          scores[n].of[2 * half + e] += shape.mask.get(query * shape.keys + key + 8 * n + e) * log2_e;
        }
      }
    }
  }
  SHARDRUN_ON_DEVICE void drop(Block& block, const Head& head, std::int64_t query, std::int64_t key,
                               FragmentC (&scores)[fragments]) const {
    SHARDRUN_UNROLLED for (int n = 0; n < fragments; ++n) {
      const FragmentC factors =
          attention::dropout_factors(block, shape, head, query, key + 8 * n + block.lane() % 4 * 2);
      SHARDRUN_UNROLLED for (int e = 0; e < 4; ++e) {
        scores[n].of[e] = factors.of[e] == 0.0F ? 0.0F : scores[n].of[e] * factors.of[e];
      }
    }
  }
};

template <typename Kernel>
void launch_attention(const KernelCall& call, const attention::Tensors& of, int threads) {
  const Kernel kernel = {of};
  launch(call, kernel.blocks(), threads, Kernel::shared(), kernel);
}

void attend(const KernelCall& call, const attention::Tensors& of) {
  const bool matrices = attention::all_bfloat({&of.q, &of.k, &of.v, &of.out});
  constexpr int few = attention::warps * warp_size;
  if (matrices && of.shape.width <= attention::widest / 2) {
    launch_attention<AttendMatrices<attention::widest / 2, 2>>(call, of, few);
  } else if (matrices && of.shape.width <= attention::widest) {
    launch_attention<AttendMatrices<attention::widest, 1>>(call, of, few);
  } else {
    launch_attention<Attend>(call, of, attention::threads);
  }
}

/// qkv -> out, lse
void packed_attention(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  attend(call, {attention::packed_shape(call), attention::part_rows(qkv, 0), attention::part_rows(qkv, 1),
                attention::part_rows(qkv, 2), attention::key_rows(call.outputs[0]), reals(call.outputs[1])});
}

/// q, k, v (, mask) -> out, lse
void separate_attention(const KernelCall& call) {
  const attention::Shape shape = attention::separate_shape(call, 3);
  attend(call,
         {shape, attention::query_rows(call.inputs[0], shape), attention::key_rows(call.inputs[1]),
          attention::key_rows(call.inputs[2]), attention::query_rows(call.outputs[0], shape), reals(call.outputs[1])});
}

const AddKernels attentions({{"attention", {.run = packed_attention}},
                             {"scaled_dot_product_attention", {.run = separate_attention}}});

}  // namespace
}  // namespace shardrun::device::cuda
