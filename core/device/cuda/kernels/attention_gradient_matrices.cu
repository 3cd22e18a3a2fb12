#include "core/device/cuda/kernels/attention_gradient.h"

namespace shardrun::device::cuda::attention {
namespace {

/// The position of a lane's elements of one fragment of scores, and the data of their queries and keys. Rows of scores
/// are queries, except in transposed scores, whose rows are keys.
struct FragmentFacts {
  const Seen (&seen)[2];  ///< visible columns of the lane's two rows, from its first column on
  int column;             ///< the fragment's first column, counted from the lane's first
  std::int64_t query;     ///< the query of the first element
  std::int64_t key;
  const float (&lse)[2];  ///< log-sum-exp of the lane's two queries, base 2
  const float (&dout_out)[2];
  const FragmentC& keep;
};

/// Turns a fragment's scores into P times dropout's factors, and dO . v into dS. `all_visible`: no key is masked.
template <bool is_plain, bool all_visible, bool is_transposed>
SHARDRUN_ON_DEVICE inline void differentiate_fragment(const Shape& shape, const FragmentFacts& at, FragmentC& scores,
                                                      FragmentC& gradients) {
  const float scale = shape.scale * log2_e;
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
        exponent += exists ? shape.mask.get(query * shape.keys + key) * log2_e : 0.0F;
      }
      exponent = is_visible ? exponent : -HUGE_VALF;
    }
    const float p = power_of_two(exponent);
    const float of_p = (drops ? at.keep.of[i] * gradients.of[i] : gradients.of[i]) - at.dout_out[of_query];
    gradients.of[i] = !all_visible && p == 0.0F ? 0.0F : p * of_p * shape.scale;
    scores.of[i] = drops ? (at.keep.of[i] == 0.0F ? 0.0F : p * at.keep.of[i]) : p;
  }
}

/// Computes dq. `width`: at least the width of heads. `count`: fragments of 16 queries per warp. `step`: keys per tile.
/// `is_plain`: no mask, no dropout, and rows can be read in eights; other cases need more registers.
template <int width, int count, int step, bool is_plain>
struct GradientQueriesMatrices {
  static constexpr int warp_rows = count * fragment_rows;
  static constexpr int rows = warps * warp_rows;
  using QueryTile = MatrixTile<rows, width>;
  using TwoTiles = MatrixTile<2 * step, width>;

  GradientTensors of;
  HeadRows dq;

  [[nodiscard]] static std::size_t shared() { return 2 * QueryTile::bytes() + 2 * TwoTiles::bytes(); }
  [[nodiscard]] std::int64_t blocks() const { return blocks_of_queries(of.shape, rows); }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shape& shape = of.shape;
    const OwnQueries mine = own_queries(shape, block.index(), rows);
    const Head& head = mine.head;
    const int warp_row = block.warp() * warp_rows;
    const std::int64_t begin = mine.first + warp_row;
    const std::int64_t query = begin + block.lane() / 4;
    const QueryTile queries(block);
    const QueryTile douts(block);
    const TwoTiles keys(block);
    const TwoTiles values(block);
    const HeadRows dout = of.gradient_of_out();
    float lses[count][2];
    float dout_outs[count][2];
    SHARDRUN_UNROLLED for (int i = 0; i < 2 * count; ++i) {
      const std::int64_t row = query + 8 * i;
      const std::int64_t at = shape.lse_row(head) + row;
      lses[i / 2][i % 2] = row < shape.queries ? of.lse.get(at) * log2_e : 0.0F;
      dout_outs[i / 2][i % 2] = row < shape.queries ? of.dout_out[at] : 0.0F;
    }
    FragmentC result[count][width / 8] = {};
    const Range own = {begin, begin + warp_rows};
    queries.template load<rows, is_plain>(block, of.q, head.begin(of.q), mine.first, shape.queries, shape.width);
    douts.template load<rows, is_plain>(block, dout, head.begin(dout), mine.first, shape.queries, shape.width);
    const auto load = [&](const TilesOfRows<step>& tiles, int to) {
      keys.template load<step, is_plain>(block, of.k, head.begin(of.k), tiles.row(), shape.keys, shape.width, to);
      values.template load<step, is_plain>(block, of.v, head.begin(of.v), tiles.row(), shape.keys, shape.width, to);
    };
    const auto compute = [&](const TilesOfRows<step>& tiles, int at) {
      const std::int64_t key = tiles.row();
      FragmentC scores[count][step / 8] = {};
      FragmentC gradients[count][step / 8] = {};
      add_row_products(block, queries, warp_row, keys, at, scores);
      add_row_products(block, douts, warp_row, values, at, gradients);
      if ((is_plain || !shape.has_mask) && shape.see_all(own, {key, key + step})) {
        differentiate<true>(block, head, query, key, lses, dout_outs, scores, gradients);
      } else {
        differentiate<false>(block, head, query, key, lses, dout_outs, scores, gradients);
      }
      add_rounded_product(block, gradients, keys, at, result);
    };
    const TilesOfRows<step> seen(shape.visible({mine.first, mine.first + rows}));
    over_tiles<step>(block, seen, shape.visible(own), load, compute);
    SHARDRUN_UNROLLED for (int f = 0; f < count; ++f) {
      store_rows<width>(block, dq, head.begin(dq), begin + f * fragment_rows, shape.queries, shape.width, result[f]);
    }
  }

 private:
  /// `query`: the query of the lane's first row. `key`: the key of the tile's first column.
  template <bool all_visible>
  SHARDRUN_ON_DEVICE void differentiate(Block& block, const Head& head, std::int64_t query, std::int64_t key,
                                        const float (&lses)[count][2], const float (&dout_outs)[count][2],
                                        FragmentC (&scores)[count][step / 8],
                                        FragmentC (&gradients)[count][step / 8]) const {
    const std::int64_t column = key + block.lane() % 4 * 2;
    SHARDRUN_UNROLLED for (int f = 0; f < count; ++f) {
      const std::int64_t row = query + f * fragment_rows;
      const Seen seen[] = {of.shape.seen_keys(row, column), of.shape.seen_keys(row + 8, column)};
      SHARDRUN_UNROLLED for (int n = 0; n < step / 8; ++n) {
        FragmentC keep = {};
        if (!is_plain && of.shape.stream.drops()) {
          keep = dropout_factors(block, of.shape, head, row, column + 8 * n);
        }
        differentiate_fragment<is_plain, all_visible, false>(
            of.shape, {seen, 8 * n, row, column + 8 * n, lses[f], dout_outs[f], keep}, scores[f][n], gradients[f][n]);
      }
    }
  }
};

/// The tiles of `step` queries that see a block's keys, one head of the group after the other.
template <int step>
class TilesOfGroup {
 public:
  std::int64_t group;

  SHARDRUN_ON_DEVICE TilesOfGroup(const Range& seeing, const Range& groups)
      : group(groups.begin),
        first_(seeing.begin / step * step),
        of_head_(static_cast<int>((seeing.end - first_ + step - 1) / step)),
        left_(of_head_ * static_cast<int>(groups.end - groups.begin)) {}
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t row() const { return first_ + in_head_ * step; }
  [[nodiscard]] SHARDRUN_ON_DEVICE bool has_tile() const { return left_ > 0; }
  SHARDRUN_ON_DEVICE void advance() {
    const bool is_last = ++in_head_ == of_head_;
    in_head_ = is_last ? 0 : in_head_;
    group += is_last ? 1 : 0;
    --left_;
  }

 private:
  std::int64_t first_;
  int of_head_;
  int left_;         ///< tiles left, including this one
  int in_head_ = 0;  ///< the tile's number within its head
};

/// Computes dk and dv. Scores are computed transposed: a warp has `count` fragments of 16 keys. `step`:
/// queries per tile.
template <int width, int count, int step, bool is_plain>
struct GradientKeysMatrices {
  static constexpr int warp_rows = count * fragment_rows;
  static constexpr int rows = warps * warp_rows;
  using OwnTile = MatrixTile<rows, width>;
  using TwoTiles = MatrixTile<2 * step, width>;

  GradientTensors of;
  HeadRows dk;
  HeadRows dv;

  [[nodiscard]] static std::size_t shared() {
    return 2 * OwnTile::bytes() + 2 * TwoTiles::bytes() + 2 * shared_bytes<float>(2 * step);
  }
  [[nodiscard]] std::int64_t blocks() const { return of.shape.batch * of.shape.heads * of.shape.key_tiles(rows); }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shape& shape = of.shape;
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
    keys.template load<rows, is_plain>(block, of.k, own_head.begin(of.k), first, shape.keys, shape.width);
    values.template load<rows, is_plain>(block, of.v, own_head.begin(of.v), first, shape.keys, shape.width);
    FragmentC result_k[count][width / 8] = {};
    FragmentC result_v[count][width / 8] = {};
    const Range own = {begin, begin + warp_rows};
    const auto load = [&](const TilesOfGroup<step>& tiles, int to) {
      const Head head = {own_head.sample, own_head.head, tiles.group};
      queries.template load<step, is_plain>(block, of.q, head.begin(of.q), tiles.row(), shape.queries, shape.width, to);
      douts.template load<step, is_plain>(block, dout, head.begin(dout), tiles.row(), shape.queries, shape.width, to);
      if (block.thread() < step) {
        const std::int64_t row = tiles.row() + block.thread();
        const std::int64_t at = shape.lse_row(head) + row;
        lses[to + block.thread()] = row < shape.queries ? of.lse.get(at) * log2_e : 0.0F;
        dout_outs[to + block.thread()] = row < shape.queries ? of.dout_out[at] : 0.0F;
      }
    };
    const std::int64_t key = begin + block.lane() / 4;
    const auto compute = [&](const TilesOfGroup<step>& tiles, int at) {
      const Head head = {own_head.sample, own_head.head, tiles.group};
      const std::int64_t query = tiles.row();
      FragmentC scores[count][step / 8] = {};
      FragmentC gradients[count][step / 8] = {};
      add_row_products(block, keys, warp_row, queries, at, scores);
      add_row_products(block, values, warp_row, douts, at, gradients);
      if ((is_plain || !shape.has_mask) && shape.see_all({query, query + step}, own)) {
        differentiate<true>(block, head, query, key, at, lses, dout_outs, scores, gradients);
      } else {
        differentiate<false>(block, head, query, key, at, lses, dout_outs, scores, gradients);
      }
      add_rounded_product(block, gradients, queries, at, result_k);
      add_rounded_product(block, scores, douts, at, result_v);
    };
    const TilesOfGroup<step> seeing(shape.seeing({first, first + rows}), shape.heads_of_group(own_head.head));
    over_tiles<step>(block, seeing, shape.seeing(own), load, compute);
    SHARDRUN_UNROLLED for (int f = 0; f < count; ++f) {
      const std::int64_t row = begin + f * fragment_rows;
      store_rows<width>(block, dk, own_head.begin(dk), row, shape.keys, shape.width, result_k[f]);
      store_rows<width>(block, dv, own_head.begin(dv), row, shape.keys, shape.width, result_v[f]);
    }
  }

 private:
  /// `query`: the query of the tile's first column. `key`: the key of the lane's first row. `at`: the tile's first row
  /// in shared memory.
  template <bool all_visible>
  SHARDRUN_ON_DEVICE void differentiate(Block& block, const Head& head, std::int64_t query, std::int64_t key, int at,
                                        const Shared<float>& lses, const Shared<float>& dout_outs,
                                        FragmentC (&scores)[count][step / 8],
                                        FragmentC (&gradients)[count][step / 8]) const {
    const int first = block.lane() % 4 * 2;
    const std::int64_t column = query + first;
    SHARDRUN_UNROLLED for (int f = 0; f < count; ++f) {
      const std::int64_t row = key + f * fragment_rows;
      const Seen seen[] = {of.shape.seeing_queries(row, column), of.shape.seeing_queries(row + 8, column)};
      SHARDRUN_UNROLLED for (int n = 0; n < step / 8; ++n) {
        FragmentC keep = {};
        if (!is_plain && of.shape.stream.drops()) {
          keep = transposed_dropout_factors(block, of.shape, head, column + 8 * n, row);
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

/// `query_step`: the keys per tile of the kernel of dq. `key_step`: the queries per tile of the kernel of dk and dv.
template <int width, int count, int query_step, int key_step, bool is_plain>
void launch_matrices(const KernelCall& call, const GradientTensors& of, const Gradients& to) {
  launch_gradients(call, warps * warp_size, GradientQueriesMatrices<width, count, query_step, is_plain>{of, to.dq},
                   GradientKeysMatrices<width, count, key_step, is_plain>{of, to.dk, to.dv});
}

}  // namespace

void launch_gradient_matrices(const KernelCall& call, const GradientTensors& of, const Gradients& to) {
  constexpr int narrow = widest / 2;
  const bool is_narrow = of.shape.width <= narrow;
  bool is_plain = !of.shape.has_mask && !of.shape.stream.drops();
  for (const HeadRows* rows : {&of.q, &of.k, &of.v, &of.out}) {
    is_plain = is_plain && rows->in_eights;
  }
  if (is_narrow && is_plain) {
    launch_matrices<narrow, 2, 32, 32, true>(call, of, to);
  } else if (is_narrow) {
    launch_matrices<narrow, 1, 64, 64, false>(call, of, to);
  } else if (is_plain) {
    launch_matrices<widest, 1, 32, 32, true>(call, of, to);
  } else {
    launch_matrices<widest, 1, 32, 16, false>(call, of, to);
  }
}

}  // namespace shardrun::device::cuda::attention
