#include <algorithm>
#include <cmath>
#include <string>

#include "core/base/error.h"
#include "core/device/cuda/random.h"
#include "core/device/cuda/rows.h"

// Attention in tiles, without the matrix of probabilities. Dao et al. 2022, arXiv:2205.14135; its second version,
// arXiv:2307.08691, has the loops of these kernels: a block of the forward and of dq has queries and goes over keys; a
// block of dk and dv has keys and goes over queries. So every result is added up by one block in one order, without
// atomic additions. All sums are float32.
//
// Each warp has 8 rows of its block's tile (queries, or keys), and each lane one row of the other tile for scores, and
// then some columns of the results.

namespace shardrun::device::cuda {
namespace {

constexpr int tile = warp_size;  ///< queries, and keys, of a tile
constexpr int rows_of_warp = 8;
constexpr int warps = tile / rows_of_warp;
constexpr int threads = warps * warp_size;

/// Four neighbouring columns, read at once.
struct alignas(16) Four {
  float of[4];
};

/// Where the rows of a head lie in a tensor, in elements.
struct Place {
  Reals data;
  std::int64_t of_sequence;
  std::int64_t of_row;
  std::int64_t of_head;
  std::int64_t of_group;
  std::int64_t first;
};

/// A head of queries of one sample.
struct Head {
  std::int64_t sequence;
  std::int64_t head;  ///< of keys and values
  std::int64_t group;

  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t begin(const Place& at) const {
    return at.first + sequence * at.of_sequence + head * at.of_head + group * at.of_group;
  }
};

struct Shape {
  std::int64_t batch;
  int queries;
  int keys;
  std::int64_t heads;   ///< of keys and values
  std::int64_t groups;  ///< heads of queries for each
  int width;
  float scale;
  bool causal = true;
  int window = 0;       ///< 0: none
  int first_query = 0;  ///< the position of this shard's first query
  bool has_mask = false;
  Reals mask = {};  ///< [queries, keys]
  DropoutStream dropout = {};
  std::int64_t first_sample = 0;
  std::int64_t first_head = 0;  ///< of the whole tensor, and so on
  std::int64_t first_group = 0;
  std::int64_t all_groups = 1;
  std::int64_t all_queries = 0;

  // Positions have 32 bits: with 64, those of all rows of a warp would not fit into registers.

  /// Query i sees keys [first_key(i), last_key(i)).
  [[nodiscard]] SHARDRUN_ON_DEVICE int first_key(int i) const {
    const int first = first_query + i - window + 1;
    return window > 0 && first > 0 ? first : 0;
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE int last_key(int i) const {
    const int end = causal ? first_query + i + 1 : window > 0 ? first_query + i + window : keys;
    return end < keys ? end : keys;
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE bool sees(int i, int j) const {
    return i < queries && j >= first_key(i) && j < last_key(i);
  }
  /// Queries [first, last) are all that see one of the keys [begin, end).
  [[nodiscard]] SHARDRUN_ON_DEVICE int first_query_of(int begin) const {
    const int position = causal ? begin : window > 0 ? begin - window + 1 : 0;
    return position > first_query ? position - first_query : 0;
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE int last_query_of(int end) const {
    const int last = end - 1 + window - first_query;
    return window > 0 && last < queries ? last : queries;
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE float score(float product, int i, int j) const {
    return product * scale + (has_mask ? mask.get(std::int64_t{i} * keys + j) : 0.0F);
  }
  /// Dropout's factor of a probability.
  [[nodiscard]] SHARDRUN_ON_DEVICE float keep(const Head& head, int i, int j) const {
    if (!dropout.drops()) {
      return 1.0F;
    }
    const std::int64_t of_all = (first_head + head.head) * all_groups + first_group + head.group;
    return dropout.factor(first_sample + head.sequence, (of_all * all_queries + first_query + i) * keys + j);
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE Head head_of(std::int64_t number) const {
    return {number / (groups * heads), number / groups % heads, number % groups};
  }
  /// Where the statistics of a head's queries begin.
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t statistics(const Head& head) const {
    return ((head.sequence * heads + head.head) * groups + head.group) * queries;
  }
};

/// Rows of a head in shared memory, by fours of columns. A lane reads the columns of its own row without bank
/// conflicts, and neighbouring lanes neighbouring columns of one row too. Columns past the width are 0, as are rows
/// past the end.
template <int width>
struct Tile {
  static constexpr int stride = tile + 1;
  static constexpr int size = width / 4 * stride;
  Shared<Four> fours;

  [[nodiscard]] SHARDRUN_ON_DEVICE Four four(int column, int row) const { return fours[column * stride + row]; }
  [[nodiscard]] SHARDRUN_ON_DEVICE float one(int column, int row) const {
    return fours[column / 4 * stride + row].of[column % 4];
  }
  SHARDRUN_ON_DEVICE void load(Block& block, const Place& at, const Head& head, int first, int rows,
                               int columns) const {
    SHARDRUN_NOT_UNROLLED for (int i = block.thread(); i < width / 4 * tile; i += threads) {
      const int row = i / (width / 4);
      const int four = i % (width / 4);
      const std::int64_t from = head.begin(at) + std::int64_t{first + row} * at.of_row + 4 * four;
      Four values;
      SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) {
        values.of[k] = first + row < rows && 4 * four + k < columns ? at.data.get(from + k) : 0.0F;
      }
      fours[four * stride + row] = values;
    }
  }
};

/// products[r] = the product of row r of the warp's rows of `a` and of the lane's row of `b`.
template <int width>
SHARDRUN_ON_DEVICE inline void products_of(Block& block, const Tile<width>& a, const Tile<width>& b,
                                           float (&products)[rows_of_warp]) {
  SHARDRUN_UNROLLED for (float& product : products) { product = 0; }
  SHARDRUN_NOT_UNROLLED for (int column = 0; column < width / 4; ++column) {
    const Four of_lane = b.four(column, block.lane());
    SHARDRUN_UNROLLED for (int r = 0; r < rows_of_warp; ++r) {
      const Four of_row = a.four(column, block.warp() * rows_of_warp + r);
      SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) { products[r] += of_row.of[k] * of_lane.of[k]; }
    }
  }
}

/// A number for each of a warp's rows and each row of the other tile.
struct Weights {
  static constexpr int size = tile * tile / 4;
  Shared<Four> fours;

  SHARDRUN_ON_DEVICE void set(int row, int column, float value) const {
    fours[row * (tile / 4) + column / 4].of[column % 4] = value;
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE Four four(int row, int column) const { return fours[row * (tile / 4) + column]; }
};

/// sums[r][c] += the sum over rows j of `b` of weights[r][j] b[j][lane + 32 c].
template <int width>
SHARDRUN_ON_DEVICE inline void add_weighted(Block& block, const Weights& weights, const Tile<width>& b,
                                            float (&sums)[rows_of_warp][width / warp_size]) {
  SHARDRUN_NOT_UNROLLED for (int j = 0; j < tile; j += 4) {
    float values[4][width / warp_size];
    SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) {
      SHARDRUN_UNROLLED for (int c = 0; c < width / warp_size; ++c) {
        values[k][c] = b.one(block.lane() + warp_size * c, j + k);
      }
    }
    SHARDRUN_UNROLLED for (int r = 0; r < rows_of_warp; ++r) {
      const Four weight = weights.four(block.warp() * rows_of_warp + r, j / 4);
      SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) {
        SHARDRUN_UNROLLED for (int c = 0; c < width / warp_size; ++c) { sums[r][c] += weight.of[k] * values[k][c]; }
      }
    }
  }
}

template <int width>
SHARDRUN_ON_DEVICE inline void store(Block& block, const Place& at, const Head& head, std::int64_t row, int r,
                                     int columns, const float (&sums)[rows_of_warp][width / warp_size], float factor) {
  SHARDRUN_UNROLLED for (int c = 0; c < width / warp_size; ++c) {
    const int column = block.lane() + warp_size * c;
    if (column < columns) {
      at.data.set(head.begin(at) + row * at.of_row + column, sums[r][c] * factor);
    }
  }
}

/// out = softmax(Q K^T scale + mask) V over the keys that each query sees, with dropout on the probabilities, and
/// lse[i] = log of the sum over j of exp(score). Vaswani et al. 2017, arXiv:1706.03762, equation 1.
template <int width>
struct Attend {
  static constexpr int block_threads = threads;
  static constexpr int fours = 3 * Tile<width>::size + Weights::size;
  Shape shape;
  Place q;
  Place k;
  Place v;
  Place out;
  Reals lse;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const int tiles = (shape.queries + tile - 1) / tile;
    const Head head = shape.head_of(block.index() / tiles);
    const int first = static_cast<int>(block.index() % tiles) * tile;
    const int last = first + tile < shape.queries ? first + tile : shape.queries;
    const Tile<width> of_q{block.shared<Four>(Tile<width>::size)};
    const Tile<width> of_k{block.shared<Four>(Tile<width>::size)};
    const Tile<width> of_v{block.shared<Four>(Tile<width>::size)};
    const Weights weights{block.shared<Four>(Weights::size)};
    constexpr float lowest = -static_cast<float>(__builtin_huge_val());
    float sums[rows_of_warp][width / warp_size] = {};
    float largest[rows_of_warp];
    float totals[rows_of_warp] = {};  // of this lane's keys
    SHARDRUN_UNROLLED for (float& each : largest) { each = lowest; }
    of_q.load(block, q, head, first, shape.queries, shape.width);
    const int end = shape.last_key(last - 1);
    for (int key = shape.first_key(first) / tile * tile; key < end; key += tile) {
      of_k.load(block, k, head, key, shape.keys, shape.width);
      of_v.load(block, v, head, key, shape.keys, shape.width);
      block.sync();
      float scores[rows_of_warp];
      products_of(block, of_q, of_k, scores);
      const int j = key + block.lane();
      SHARDRUN_UNROLLED for (int r = 0; r < rows_of_warp; ++r) {
        const int row = block.warp() * rows_of_warp + r;
        const int i = first + row;
        const bool sees = shape.sees(i, j);
        const float score = sees ? shape.score(scores[r], i, j) : lowest;
        const float before = largest[r];
        largest[r] = Larger{}(before, warp_max(block, score));
        const float p = sees ? FloatMath::exp(score - largest[r]) : 0.0F;
        const float shrink = before == lowest ? 0.0F : FloatMath::exp(before - largest[r]);
        totals[r] = totals[r] * shrink + p;
        SHARDRUN_UNROLLED for (float& sum : sums[r]) { sum *= shrink; }
        weights.set(row, block.lane(), sees ? p * shape.keep(head, i, j) : 0.0F);
      }
      block.sync_warp();
      add_weighted(block, weights, of_v, sums);
      block.sync();
    }
    SHARDRUN_UNROLLED for (int r = 0; r < rows_of_warp; ++r) {
      const int i = first + block.warp() * rows_of_warp + r;
      const float total = warp_sum(block, totals[r]);
      if (i < shape.queries) {
        store<width>(block, out, head, i, r, shape.width, sums, 1.0F / total);
        if (block.lane() == 0) {
          lse.set(shape.statistics(head) + i, largest[r] + FloatMath::log(total));
        }
      }
    }
  }
};

/// What a gradient reads. Dao et al. 2022, appendix B.4:
///   dP_ij = keep_ij (dO_i . v_j)     D_i = dO_i . O_i     dS_ij = P_ij (dP_ij - D_i) scale
///   dq_i = sum of dS_ij k_j     dk_j = sum of dS_ij q_i     dv_j = sum of keep_ij P_ij dO_i
struct GradientOf {
  Shape shape;
  Place q;
  Place k;
  Place v;
  Place out;
  Place dout;
  Reals lse;
  float* products;  ///< D, as lse is laid out

  /// P_ij keep_ij and dS_ij.
  struct Pair {
    float p;
    float ds;
  };
  [[nodiscard]] SHARDRUN_ON_DEVICE Pair pair(const Head& head, int i, int j, float product, float of_value,
                                             float of_lse, float of_products) const {
    if (!shape.sees(i, j)) {
      return {0, 0};
    }
    const float p = FloatMath::exp(shape.score(product, i, j) - of_lse);
    const float keep = shape.keep(head, i, j);
    return {p * keep, p * (keep * of_value - of_products) * shape.scale};
  }
};

struct OutputProducts {
  GradientOf of;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const Head head = of.shape.head_of(row / of.shape.queries);
    const std::int64_t i = row % of.shape.queries;
    const std::int64_t from = head.begin(of.out) + i * of.out.of_row;
    float sum = 0;
    team.template loop<1>(of.shape.width,
                          [&](std::int64_t e) { sum += of.dout.data.get(from + e) * of.out.data.get(from + e); });
    sum = team.sum(sum);
    if (team.member() == 0) {
      of.products[row] = sum;
    }
  }
};

template <int width>
struct QueryGradient {
  static constexpr int block_threads = threads;
  static constexpr int fours = 4 * Tile<width>::size + Weights::size;
  GradientOf of;
  Place dq;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shape& shape = of.shape;
    const int tiles = (shape.queries + tile - 1) / tile;
    const Head head = shape.head_of(block.index() / tiles);
    const int first = static_cast<int>(block.index() % tiles) * tile;
    const int last = first + tile < shape.queries ? first + tile : shape.queries;
    const Tile<width> of_q{block.shared<Four>(Tile<width>::size)};
    const Tile<width> of_dout{block.shared<Four>(Tile<width>::size)};
    const Tile<width> of_k{block.shared<Four>(Tile<width>::size)};
    const Tile<width> of_v{block.shared<Four>(Tile<width>::size)};
    const Weights weights{block.shared<Four>(Weights::size)};
    float sums[rows_of_warp][width / warp_size] = {};
    float of_lse[rows_of_warp];
    float of_products[rows_of_warp];
    SHARDRUN_UNROLLED for (int r = 0; r < rows_of_warp; ++r) {
      const int i = first + block.warp() * rows_of_warp + r;
      const std::int64_t at = shape.statistics(head) + (i < shape.queries ? i : shape.queries - 1);
      of_lse[r] = of.lse.get(at);
      of_products[r] = of.products[at];
    }
    of_q.load(block, of.q, head, first, shape.queries, shape.width);
    of_dout.load(block, of.dout, head, first, shape.queries, shape.width);
    const int end = shape.last_key(last - 1);
    for (int key = shape.first_key(first) / tile * tile; key < end; key += tile) {
      of_k.load(block, of.k, head, key, shape.keys, shape.width);
      of_v.load(block, of.v, head, key, shape.keys, shape.width);
      block.sync();
      float scores[rows_of_warp];
      float of_values[rows_of_warp];
      products_of(block, of_q, of_k, scores);
      products_of(block, of_dout, of_v, of_values);
      SHARDRUN_UNROLLED for (int r = 0; r < rows_of_warp; ++r) {
        const int row = block.warp() * rows_of_warp + r;
        const GradientOf::Pair pair =
            of.pair(head, first + row, key + block.lane(), scores[r], of_values[r], of_lse[r], of_products[r]);
        weights.set(row, block.lane(), pair.ds);
      }
      block.sync_warp();
      add_weighted(block, weights, of_k, sums);
      block.sync();
    }
    SHARDRUN_UNROLLED for (int r = 0; r < rows_of_warp; ++r) {
      const int i = first + block.warp() * rows_of_warp + r;
      if (i < shape.queries) {
        store<width>(block, dq, head, i, r, shape.width, sums, 1.0F);
      }
    }
  }
};

template <int width>
struct KeyGradient {
  static constexpr int block_threads = threads;
  static constexpr int fours = 4 * Tile<width>::size + 2 * Weights::size;
  GradientOf of;
  Place dk;
  Place dv;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shape& shape = of.shape;
    const int tiles = (shape.keys + tile - 1) / tile;
    const std::int64_t number = block.index() / tiles;
    Head head = {number / shape.heads, number % shape.heads, 0};
    const Head of_keys = head;
    const int first = static_cast<int>(block.index() % tiles) * tile;
    const int last = first + tile < shape.keys ? first + tile : shape.keys;
    const Tile<width> of_q{block.shared<Four>(Tile<width>::size)};
    const Tile<width> of_dout{block.shared<Four>(Tile<width>::size)};
    const Tile<width> of_k{block.shared<Four>(Tile<width>::size)};
    const Tile<width> of_v{block.shared<Four>(Tile<width>::size)};
    const Weights probabilities{block.shared<Four>(Weights::size)};
    const Weights differences{block.shared<Four>(Weights::size)};
    float of_dk[rows_of_warp][width / warp_size] = {};
    float of_dv[rows_of_warp][width / warp_size] = {};
    of_k.load(block, of.k, head, first, shape.keys, shape.width);
    of_v.load(block, of.v, head, first, shape.keys, shape.width);
    const int end = shape.last_query_of(last);
    for (head.group = 0; head.group < shape.groups; ++head.group) {
      for (int query = shape.first_query_of(first) / tile * tile; query < end; query += tile) {
        of_q.load(block, of.q, head, query, shape.queries, shape.width);
        of_dout.load(block, of.dout, head, query, shape.queries, shape.width);
        block.sync();
        float scores[rows_of_warp];
        float of_values[rows_of_warp];
        products_of(block, of_k, of_q, scores);
        products_of(block, of_v, of_dout, of_values);
        const int i = query + block.lane();
        const std::int64_t at = shape.statistics(head) + (i < shape.queries ? i : shape.queries - 1);
        const float of_lse = of.lse.get(at);
        const float of_products = of.products[at];
        SHARDRUN_UNROLLED for (int r = 0; r < rows_of_warp; ++r) {
          const int row = block.warp() * rows_of_warp + r;
          const GradientOf::Pair pair = of.pair(head, i, first + row, scores[r], of_values[r], of_lse, of_products);
          probabilities.set(row, block.lane(), pair.p);
          differences.set(row, block.lane(), pair.ds);
        }
        block.sync_warp();
        add_weighted(block, differences, of_q, of_dk);
        add_weighted(block, probabilities, of_dout, of_dv);
        block.sync();
      }
    }
    SHARDRUN_UNROLLED for (int r = 0; r < rows_of_warp; ++r) {
      const int j = first + block.warp() * rows_of_warp + r;
      if (j < shape.keys) {
        store<width>(block, dk, of_keys, j, r, shape.width, of_dk, 1.0F);
        store<width>(block, dv, of_keys, j, r, shape.width, of_dv, 1.0F);
      }
    }
  }
};

/// Part `number` of qkv [B, T, 3, H, D].
Place packed_place(const TensorView& qkv, std::int64_t number) {
  const std::int64_t length = qkv.shape[1];
  const std::int64_t width = qkv.shape[4];
  const std::int64_t row = qkv.shape[3] * width;
  return {reals(qkv), length * 3 * row, 3 * row, width, 0, number * row};
}
/// [B, T, H, D]
Place head_place(const TensorView& tensor) {
  const std::int64_t width = tensor.shape[3];
  const std::int64_t row = tensor.shape[2] * width;
  return {reals(tensor), tensor.shape[1] * row, row, width, 0, 0};
}
/// [B, T, H, G, D]
Place group_place(const TensorView& tensor) {
  const std::int64_t width = tensor.shape[4];
  const std::int64_t head = tensor.shape[3] * width;
  const std::int64_t row = tensor.shape[2] * head;
  return {reals(tensor), tensor.shape[1] * row, row, head, width, 0};
}

Shape packed_shape(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const auto length = static_cast<int>(qkv.shape[1]);
  const std::int64_t width = qkv.shape[4];
  return {.batch = qkv.shape[0],
          .queries = length,
          .keys = length,
          .heads = qkv.shape[3],
          .groups = 1,
          .width = static_cast<int>(width),
          .scale = 1.0F / std::sqrt(static_cast<float>(width)),
          .dropout = DropoutStream(call, call.attributes.real("dropout")),
          .first_sample = call.scalars.first_sample + qkv.origin[0],
          .first_head = qkv.origin[3],
          .all_queries = length};
}

/// `mask`: which operand; there may be none.
Shape separate_shape(const KernelCall& call, std::size_t mask) {
  const TensorView& q = call.inputs[0];
  const bool has_mask = mask < call.inputs.size();
  const auto scale = static_cast<float>(call.attributes.real("scale"));
  return {.batch = q.shape[0],
          .queries = static_cast<int>(q.shape[1]),
          .keys = static_cast<int>(call.inputs[1].shape[1]),
          .heads = q.shape[2],
          .groups = q.shape[3],
          .width = static_cast<int>(q.shape[4]),
          .scale = scale != 0 ? scale : 1.0F / std::sqrt(static_cast<float>(q.shape[4])),
          .causal = call.attributes.integer("causal") == 1,
          .window = static_cast<int>(std::min<std::int64_t>(call.attributes.integer("window"), 1 << 30)),
          .first_query = static_cast<int>(q.origin[1]),
          .has_mask = has_mask,
          .mask = has_mask ? reals(call.inputs[mask]) : Reals{},
          .dropout = DropoutStream(call, call.attributes.real("dropout")),
          .first_sample = call.scalars.first_sample + q.origin[0],
          .first_head = q.origin[2],
          .first_group = q.origin[3],
          .all_groups = q.global[3],
          .all_queries = q.global[1]};
}

/// Calls launch_for.operator()<width>() for the smallest width of tiles that a head fits into.
template <typename LaunchFor>
void choose_width(int width, const LaunchFor& launch_for) {
  constexpr int widest = 256;
  if (width > widest) {
    throw Error(ErrorCode::job, "attention on cuda: heads are " + std::to_string(width) +
                                    " wide, and its kernels take at most " + std::to_string(widest) +
                                    "; use more heads, or device = cpu");
  }
  if (width <= 32) {
    launch_for.template operator()<32>();
  } else if (width <= 64) {
    launch_for.template operator()<64>();
  } else if (width <= 128) {
    launch_for.template operator()<128>();
  } else {
    launch_for.template operator()<widest>();
  }
}

std::int64_t tiles_of(std::int64_t rows) { return (rows + tile - 1) / tile; }

void attend(const KernelCall& call, const Shape& shape, const Place& q, const Place& k, const Place& v,
            const Place& out) {
  choose_width(shape.width, [&]<int width>() {
    launch(call, shape.batch * shape.heads * shape.groups * tiles_of(shape.queries), threads,
           shared_bytes<Four>(Attend<width>::fours), Attend<width>{shape, q, k, v, out, reals(call.outputs[1])});
  });
}

void attend_gradient(const KernelCall& call, const GradientOf& of, const Place& dq, const Place& dk, const Place& dv) {
  const Shape& shape = of.shape;
  const std::int64_t heads = shape.batch * shape.heads;
  for_each_row_in_packs<1>(call, heads * shape.groups * shape.queries, shape.width, OutputProducts{of});
  choose_width(shape.width, [&]<int width>() {
    launch(call, heads * shape.groups * tiles_of(shape.queries), threads,
           shared_bytes<Four>(QueryGradient<width>::fours), QueryGradient<width>{of, dq});
    launch(call, heads * tiles_of(shape.keys), threads, shared_bytes<Four>(KeyGradient<width>::fours),
           KeyGradient<width>{of, dk, dv});
  });
}

/// qkv -> out, lse
void attention(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  attend(call, packed_shape(call), packed_place(qkv, 0), packed_place(qkv, 1), packed_place(qkv, 2),
         head_place(call.outputs[0]));
}

/// qkv, out, lse, dout -> dqkv
void attention_gradient(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const TensorView& dqkv = call.outputs[0];
  attend_gradient(call,
                  {.shape = packed_shape(call),
                   .q = packed_place(qkv, 0),
                   .k = packed_place(qkv, 1),
                   .v = packed_place(qkv, 2),
                   .out = head_place(call.inputs[1]),
                   .dout = head_place(call.inputs[3]),
                   .lse = reals(call.inputs[2]),
                   .products = reinterpret_cast<float*>(call.scratch.data())},
                  packed_place(dqkv, 0), packed_place(dqkv, 1), packed_place(dqkv, 2));
}

/// q, k, v (, mask) -> out, lse
void separate_attention(const KernelCall& call) {
  attend(call, separate_shape(call, 3), group_place(call.inputs[0]), head_place(call.inputs[1]),
         head_place(call.inputs[2]), group_place(call.outputs[0]));
}

/// q, k, v, out, lse, dout (, mask) -> dq, dk, dv
void separate_attention_gradient(const KernelCall& call) {
  attend_gradient(call,
                  {.shape = separate_shape(call, 6),
                   .q = group_place(call.inputs[0]),
                   .k = head_place(call.inputs[1]),
                   .v = head_place(call.inputs[2]),
                   .out = group_place(call.inputs[3]),
                   .dout = group_place(call.inputs[5]),
                   .lse = reals(call.inputs[4]),
                   .products = reinterpret_cast<float*>(call.scratch.data())},
                  group_place(call.outputs[0]), head_place(call.outputs[1]), head_place(call.outputs[2]));
}

/// D, a number for each query of each head.
std::size_t packed_scratch(const graph::OpShape& shape, int) {
  return static_cast<std::size_t>(graph::element_count(shape.inputs[2])) * sizeof(float);
}
std::size_t separate_scratch(const graph::OpShape& shape, int) {
  return static_cast<std::size_t>(graph::element_count(shape.inputs[4])) * sizeof(float);
}

const AddKernels attentions({{"attention", {.run = attention}},
                             {"attention_gradient", {.run = attention_gradient, .scratch_bytes = packed_scratch}},
                             {"scaled_dot_product_attention", {.run = separate_attention}},
                             {"scaled_dot_product_attention_gradient",
                              {.run = separate_attention_gradient, .scratch_bytes = separate_scratch}}});

}  // namespace
}  // namespace shardrun::device::cuda
