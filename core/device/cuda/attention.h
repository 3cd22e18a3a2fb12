#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/random.h"
#include "core/device/cuda/values.h"
#include "core/device/query_heads.h"

/// Attention and its gradient share this: where heads lie in tensors, which keys a query sees, and float32 tiles.
namespace shardrun::device::cuda::attention {

/// The side of a square tile. A tile holds the scores of 64 queries and 64 keys, or 64 columns of 64 rows of a head.
inline constexpr int tile = 64;
/// A thread computes 4 x 4 elements of a tile, in `each` consecutive rows and columns.
inline constexpr int each = 4;
inline constexpr int side = tile / each;
inline constexpr int threads = side * side;
static_assert(threads <= most_threads && side == warp_size / 2);

/// Says where the rows of all heads lie in a tensor. Distances are in elements.
struct HeadRows {
  Reals data;
  std::int64_t of_sample = 0;
  std::int64_t of_row = 0;
  std::int64_t of_head = 0;
  std::int64_t of_group = 0;
  std::int64_t first = 0;
  bool in_packs = false;   ///< whether get_pack<each>() may be used for whole packs of a row
  bool in_eights = false;  ///< whether eight elements of a row may be read at once
};

/// A head of queries, and the head of keys and values that it attends to.
struct Head {
  std::int64_t sample;
  std::int64_t head;
  std::int64_t group;

  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t begin(const HeadRows& rows) const {
    return rows.first + sample * rows.of_sample + head * rows.of_head + group * rows.of_group;
  }
};

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

/// A range of consecutive keys or queries, from number `first` to number `last`, both included.
struct Seen {
  std::int32_t first;
  std::int32_t last;
  [[nodiscard]] SHARDRUN_ON_DEVICE bool has(std::int32_t number) const { return first <= number && number <= last; }
};

[[nodiscard]] SHARDRUN_ON_BOTH inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
[[nodiscard]] SHARDRUN_ON_BOTH inline std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// q, out: [B, T, query_heads, D]   k, v: [B, S, H, D]   log-sum-exp: [B, query_heads, T]   mask: [T, S]
/// See QueryHeads.
struct Shape {
  std::int64_t batch;
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t heads;        ///< heads of keys and values
  std::int64_t query_heads;  ///< heads of queries on this shard
  std::int64_t group;        ///< heads of queries for each head of keys
  std::int64_t skipped;      ///< heads of the first group that this shard lacks
  std::int64_t width;
  bool causal = true;
  std::int64_t window = 0;  ///< 0: no window
  float scale = 0;
  std::int64_t first_query = 0;  ///< the global index of this shard's first query
  Reals mask = {};
  bool has_mask = false;
  // For dropout's random numbers:
  DropoutStream stream = {};
  std::int64_t first_sample = 0;
  std::int64_t first_row = 0;      ///< this shard's first query among a sample's rows of probabilities
  std::int64_t rows_of_head = 0;   ///< rows from one head of keys to the next
  std::int64_t rows_of_group = 0;  ///< rows from one head of queries to the next

  [[nodiscard]] SHARDRUN_ON_BOTH std::int64_t chunks() const { return (width + tile - 1) / tile; }
  /// The number of tiles of `rows` queries.
  [[nodiscard]] SHARDRUN_ON_BOTH std::int64_t query_tiles(int rows = tile) const { return (queries + rows - 1) / rows; }
  [[nodiscard]] SHARDRUN_ON_BOTH std::int64_t key_tiles(int rows = tile) const { return (keys + rows - 1) / rows; }

  /// The keys that a query sees, as numbers relative to `key`. REQUIRES: `key` is less than 2^30 away from the query.
  [[nodiscard]] SHARDRUN_ON_DEVICE Seen seen_keys(std::int64_t query, std::int64_t key) const {
    const auto ahead = static_cast<std::int32_t>(first_query + query - key);
    const auto end = static_cast<std::int32_t>(smaller(keys - key, far));
    const std::int32_t last = causal ? ahead : window > 0 ? ahead + reach() : far;
    return {window > 0 ? ahead - reach() : -far, last < end ? last : end - 1};
  }
  /// The queries that see a key, as numbers relative to `query`. REQUIRES: as for seen_keys().
  [[nodiscard]] SHARDRUN_ON_DEVICE Seen seeing_queries(std::int64_t key, std::int64_t query) const {
    const auto ahead = static_cast<std::int32_t>(first_query + query - key);
    const auto end = static_cast<std::int32_t>(smaller(queries - query, far));
    const std::int32_t last = window > 0 ? reach() - ahead : far;
    return {causal ? -ahead : window > 0 ? -reach() - ahead : -far, last < end ? last : end - 1};
  }
  /// The keys that a query sees.
  [[nodiscard]] SHARDRUN_ON_DEVICE Range visible(std::int64_t query) const {
    const std::int64_t position = first_query + query;
    const std::int64_t begin = window > 0 ? larger(0, position - window + 1) : 0;
    const std::int64_t end = causal ? position + 1 : window > 0 ? position + window : keys;
    return {begin, smaller(end, keys)};
  }
  /// The keys that any of the queries in `some` sees. Queries past the last are left out.
  [[nodiscard]] SHARDRUN_ON_DEVICE Range visible(Range some) const {
    const std::int64_t end = smaller(some.end, queries);
    return some.begin < end ? Range{visible(some.begin).begin, visible(end - 1).end} : Range{0, 0};
  }
  /// Whether every query of `some` sees every key of `of_keys`. The first and the last query decide for all.
  [[nodiscard]] SHARDRUN_ON_DEVICE bool see_all(Range some, Range of_keys) const {
    return some.end <= queries && visible(some.end - 1).begin <= of_keys.begin &&
           of_keys.end <= visible(some.begin).end;
  }
  /// A range of queries that includes every query that sees a key of `some`.
  [[nodiscard]] SHARDRUN_ON_DEVICE Range seeing(Range some) const {
    some.end = smaller(some.end, keys);
    if (some.begin >= some.end) {
      return {0, 0};
    }
    const std::int64_t begin = causal ? some.begin : window > 0 ? some.begin - window + 1 : first_query;
    const std::int64_t end = window > 0 ? some.end - 1 + window - first_query : queries;
    return {larger(0, begin - first_query), smaller(queries, end)};
  }
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t lse_row(const Head& head) const {
    return (head.sample * query_heads + head.head * group + head.group - skipped) * queries;
  }
  /// The heads of a group that this shard has.
  [[nodiscard]] SHARDRUN_ON_DEVICE Range heads_of_group(std::int64_t head) const {
    return {head == 0 ? skipped : 0, smaller(group, query_heads + skipped - head * group)};
  }
  /// The distance from a query to the farthest key in its window.
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int32_t reach() const {
    return static_cast<std::int32_t>(smaller(window, far)) - 1;
  }
  static constexpr std::int32_t far = 1 << 30;

  /// Head `number`, counted from 0 over the heads of queries of all samples.
  [[nodiscard]] SHARDRUN_ON_DEVICE Head head_of(std::int64_t number) const {
    const std::int64_t of_sample = number % query_heads + skipped;
    return {number / query_heads, of_sample / group, of_sample % group};
  }

  /// The index, within its sample, of the random number that decides whether a probability is dropped.
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t draw_of(const Head& head, std::int64_t query, std::int64_t key) const {
    return (first_row + head.head * rows_of_head + head.group * rows_of_group + query) * keys + key;
  }

  /// Multiplies a query's probabilities of `each` consecutive keys by the factors of dropout.
  SHARDRUN_ON_DEVICE void drop(const Head& head, std::int64_t query, std::int64_t key, float (&of)[each]) const {
    const std::int64_t index = draw_of(head, query, key);
    const std::int64_t sample = first_sample + head.sample;
    DropoutStream::Factors factors = stream.factors(sample, index / 4);
    const int begins = static_cast<int>(index % 4);
    if (begins != 0) {  // shifts by one and by two places: an array with a variable index would not stay in registers
      const DropoutStream::Factors next = stream.factors(sample, index / 4 + 1);
      float all[7] = {factors.of[0], factors.of[1], factors.of[2], factors.of[3], next.of[0], next.of[1], next.of[2]};
      SHARDRUN_UNROLLED for (int i = 0; i < 6; ++i) { all[i] = begins % 2 == 1 ? all[i + 1] : all[i]; }
      SHARDRUN_UNROLLED for (int i = 0; i < 4; ++i) { factors.of[i] = begins >= 2 ? all[i + 2] : all[i]; }
    }
    SHARDRUN_UNROLLED for (int i = 0; i < each; ++i) { of[i] = factors.of[i] == 0.0F ? 0.0F : of[i] * factors.of[i]; }
  }
};
static_assert(each == 4, "dropout draws four numbers at once");

/// Four floats that are read in one access.
struct alignas(16) Four {
  float of[4];
};

/// 64 rows of 64 floats in shared memory. Each row is followed by 4 unused floats, so that neighbouring rows use
/// different banks. With `in_turns`, row 4 i + c is stored where row 16 c + i would be: then threads that read every
/// fourth row use different banks.
template <bool in_turns>
class Tile {
 public:
  static constexpr int fours = tile / 4 + 1;  ///< Fours from one row to the next
  static constexpr std::size_t bytes() { return shared_bytes<Four>(tile * fours); }

  SHARDRUN_ON_DEVICE explicit Tile(Block& block) : data_(block.shared<Four>(tile * fours)) {}

  /// Elements 4 `number` to 4 `number` + 3 of a row.
  [[nodiscard]] SHARDRUN_ON_DEVICE Four& at(int row, int number) const {
    const int place = in_turns ? row % 4 * (tile / 4) + row / 4 : row;
    return data_[place * fours + number];
  }

  /// Loads 64 rows from `first` on, and 64 of their columns from `column` on. Elements outside the tensor are 0.
  SHARDRUN_ON_DEVICE void load(const Block& block, const HeadRows& from, std::int64_t begin, std::int64_t first,
                               std::int64_t count, std::int64_t column, std::int64_t width) const {
    constexpr int rows_at_once = threads / side;
    const int number = block.thread() % side;
    SHARDRUN_UNROLLED for (int i = 0; i < tile / rows_at_once; ++i) {
      const int row = block.thread() / side + i * rows_at_once;
      const std::int64_t element = begin + (first + row) * from.of_row + column + number * 4;
      const std::int64_t left = first + row < count ? width - column - number * 4 : 0;
      Four found = {};
      if (from.in_packs && left >= 4) {
        const Pack<4> pack = from.data.get_pack<4>(element);
        SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) { found.of[k] = pack[k]; }
      } else {
        SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) { found.of[k] = k < left ? from.data.get(element + k) : 0.0F; }
      }
      at(row, number) = found;
    }
  }

 private:
  Shared<Four> data_;
};
using RowTile = Tile<false>;
using KeyTile = Tile<true>;

/// sums[r][c] += a[row + r] . b[column + c]
SHARDRUN_ON_DEVICE inline void add_dots(const RowTile& a, const KeyTile& b, int row, int column,
                                        float (&sums)[each][each]) {
  for (int d = 0; d < tile / 4; ++d) {
    Four from_a[each];
    SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) { from_a[r] = a.at(row + r, d); }
    SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) {
      const Four from_b = b.at(column + c, d);
      SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
        SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) { sums[r][c] += from_a[r].of[k] * from_b.of[k]; }
      }
    }
  }
}

/// sums[r][c] += the sum over j of a[row + r][j] b[j][column + c]
template <bool in_turns>
SHARDRUN_ON_DEVICE inline void add_product(const RowTile& a, const Tile<in_turns>& b, int row, int column,
                                           float (&sums)[each][each]) {
  for (int j = 0; j < tile / 4; ++j) {
    Four from_a[each];
    SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) { from_a[r] = a.at(row + r, j); }
    SHARDRUN_UNROLLED for (int k = 0; k < 4; ++k) {
      const Four from_b = b.at(4 * j + k, column / 4);
      SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
        SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) { sums[r][c] += from_a[r].of[k] * from_b.of[c]; }
      }
    }
  }
}

/// sums[r][c] += the sum over j of a[j][row + r] b[j][column + c]
SHARDRUN_ON_DEVICE inline void add_transposed_product(const RowTile& a, const RowTile& b, int row, int column,
                                                      float (&sums)[each][each]) {
  for (int j = 0; j < tile; ++j) {
    const Four from_a = a.at(j, row / 4);
    const Four from_b = b.at(j, column / 4);
    SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
      SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) { sums[r][c] += from_a.of[r] * from_b.of[c]; }
    }
  }
}

/// Combines the values of half a warp, whose 16 threads hold parts of the same rows of a tile.
template <typename Join>
[[nodiscard]] SHARDRUN_ON_DEVICE inline float join_row(Block& block, float value, const Join& join) {
  SHARDRUN_UNROLLED for (int distance = side / 2; distance > 0; distance /= 2) {
    value = join(value, block.exchange(value, block.lane() ^ distance));
  }
  return value;
}

/// Writes the rows of a head that this thread computed.
SHARDRUN_ON_DEVICE inline void store(const HeadRows& to, std::int64_t begin, std::int64_t first, std::int64_t count,
                                     std::int64_t column, std::int64_t width, const float (&values)[each][each]) {
  SHARDRUN_UNROLLED for (int r = 0; r < each; ++r) {
    SHARDRUN_UNROLLED for (int c = 0; c < each; ++c) {
      if (first + r < count && column + c < width) {
        to.data.set(begin + (first + r) * to.of_row + column + c, values[r][c]);
      }
    }
  }
}

[[nodiscard]] inline HeadRows head_rows(const TensorView& tensor, std::int64_t of_sample, std::int64_t of_row,
                                        std::int64_t of_head, std::int64_t of_group, std::int64_t first = 0) {
  const std::int64_t width = tensor.shape[tensor.rank - 1];
  const bool aligned = is_aligned(tensor);
  return {
      reals(tensor), of_sample, of_row, of_head, of_group, first, width % 4 == 0 && aligned, width % 8 == 0 && aligned};
}

/// The rows of q, k or v, which are parts 0, 1 and 2 of qkv [B, T, 3, H, D].
[[nodiscard]] inline HeadRows part_rows(const TensorView& qkv, std::int64_t part) {
  const std::int64_t row = qkv.shape[3] * qkv.shape[4];
  return head_rows(qkv, qkv.shape[1] * 3 * row, 3 * row, qkv.shape[4], 0, part * row);
}
/// The rows of a tensor [B, T, H, D].
[[nodiscard]] inline HeadRows key_rows(const TensorView& k) {
  const std::int64_t row = k.shape[2] * k.shape[3];
  return head_rows(k, k.shape[1] * row, row, k.shape[3], 0);
}
/// The rows of a tensor [B, T, query_heads, D].
[[nodiscard]] inline HeadRows query_rows(const TensorView& q, const Shape& shape) {
  const std::int64_t row = shape.query_heads * shape.width;
  return head_rows(q, shape.queries * row, row, shape.group * shape.width, shape.width, -shape.skipped * shape.width);
}

[[nodiscard]] inline DropoutStream dropout_of(const KernelCall& call) {
  const double rate = call.attributes.real("dropout");
  return rate == 0 ? DropoutStream() : DropoutStream(call, rate);
}

/// qkv: [B, T, 3, H, D]
[[nodiscard]] inline Shape packed_shape(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  return {.batch = qkv.shape[0],
          .queries = qkv.shape[1],
          .keys = qkv.shape[1],
          .heads = qkv.shape[3],
          .query_heads = qkv.shape[3],
          .group = 1,
          .skipped = 0,
          .width = qkv.shape[4],
          .scale = 1.0F / std::sqrt(static_cast<float>(qkv.shape[4])),
          .stream = dropout_of(call),
          .first_sample = call.scalars.first_sample + qkv.origin[0],
          .first_row = qkv.origin[3] * qkv.shape[1],
          .rows_of_head = qkv.shape[1],
          .rows_of_group = qkv.shape[1]};
}

/// `mask`: the index of the mask operand, which may be absent.
[[nodiscard]] inline Shape separate_shape(const KernelCall& call, std::size_t mask) {
  const TensorView& q = call.inputs[0];
  const TensorView& k = call.inputs[1];
  const QueryHeads heads = device::query_heads(call.attributes, q, k);
  const double scale = call.attributes.real("scale");
  const bool has_mask = mask < call.inputs.size();
  return {.batch = q.shape[0],
          .queries = q.shape[1],
          .keys = k.shape[1],
          .heads = k.shape[2],
          .query_heads = heads.count,
          .group = heads.group,
          .skipped = heads.skipped,
          .width = k.shape[3],
          .causal = call.attributes.integer("causal") == 1,
          .window = call.attributes.integer("window"),
          .scale = scale != 0 ? static_cast<float>(scale) : 1.0F / std::sqrt(static_cast<float>(k.shape[3])),
          .first_query = q.origin[1],
          .mask = has_mask ? reals(call.inputs[mask]) : Reals{},
          .has_mask = has_mask,
          .stream = dropout_of(call),
          .first_sample = call.scalars.first_sample + q.origin[0],
          .first_row = heads.of_first * q.global[1] + q.origin[1],
          .rows_of_head = heads.of_group * q.global[1],
          .rows_of_group = q.global[1]};
}

}  // namespace shardrun::device::cuda::attention
