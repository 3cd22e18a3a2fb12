#pragma once

#include "core/device/cpu/random.h"
#include "core/device/query_heads.h"
#include "core/device/cpu/sgemm.h"
#include "core/device/cpu/views.h"

/// Attention is computed one tile of query rows at a time. Scratch holds the scores of one tile for the keys that it
/// sees, never the whole matrix of scores, and float32 copies of one head's bfloat16 operands. Threads share the heads.
namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

// The sizes and places of the operands, and the keys that a query sees.

inline constexpr std::int64_t tile_rows = 32;
inline constexpr std::int64_t row_gap = 16;  // unused floats between two rows of scores

inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t larger_of(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

/// One head of queries of one sequence: number `group` of the heads that use head `head` of keys and values.
struct Head {
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t group;
};

/// Distances, in elements, that locate a head's rows in a tensor.
struct HeadRows {
  std::int64_t of_sequence;
  std::int64_t of_row;
  std::int64_t of_head;
  std::int64_t of_group = 0;
  std::int64_t first = 0;

  [[nodiscard]] std::int64_t begin(const Head& at) const {
    return first + at.sequence * of_sequence + at.head * of_head + at.group * of_group;
  }
};

/// Keys [first, last).
struct Keys {
  std::int64_t first;
  std::int64_t last;
};

struct AttentionShape {
  std::int64_t batch;
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t heads;      ///< heads of keys and values
  QueryHeads query_heads;  ///< the heads of queries that read them
  std::int64_t width;
  HeadRows q;
  HeadRows k;
  HeadRows v;
  HeadRows out;
  bool causal = true;
  std::int64_t window = 0;  ///< 0: no window
  float scale = 0;
  std::int64_t first_query = 0;  ///< the global index of this shard's first query

  [[nodiscard]] Keys visible(std::int64_t query) const {
    const std::int64_t position = first_query + query;
    const std::int64_t from = window > 0 ? larger_of(0, position - window + 1) : 0;
    const std::int64_t to = causal ? position + 1 : window > 0 ? position + window : keys;
    return {from, smaller(to, keys)};
  }
  /// The keys that any of the queries [begin, end) sees.
  [[nodiscard]] Keys visible(std::int64_t begin, std::int64_t end) const {
    return {visible(begin).first, visible(end - 1).last};
  }
  /// A bound of the number of keys that a tile of queries sees.
  [[nodiscard]] std::int64_t span() const {
    return window > 0 ? smaller(keys, (causal ? window : 2 * window) + tile_rows) : keys;
  }

  [[nodiscard]] std::int64_t tile() const { return smaller(tile_rows, queries); }
  /// Floats from one row of scores to the next: a multiple of 16, and no power of two if span() is one from 32 on.
  [[nodiscard]] std::int64_t score_stride() const { return (span() + 15) / 16 * 16 + row_gap; }
  [[nodiscard]] std::int64_t tile_floats() const { return tile() * score_stride(); }

  /// The number of threads that share the tasks. Work of less than about 0.1 ms stays on one thread.
  [[nodiscard]] int parts(std::int64_t tasks, int threads) const {
    const std::int64_t work = batch * query_heads.count * queries * (span() + 16) * (width + 16);
    const std::int64_t worthwhile = work / (1 << 20) + 1;
    return static_cast<int>(smaller(smaller(tasks, worthwhile), threads));
  }
};

/// qkv: [B, T, 3, H, D]   out: [B, T, H, D]
inline AttentionShape packed_shape(const std::int64_t* qkv) {
  const std::int64_t length = qkv[1];
  const std::int64_t heads = qkv[3];
  const std::int64_t width = qkv[4];
  const std::int64_t row = heads * width;
  const auto part = [=](int number) {
    return HeadRows{.of_sequence = length * 3 * row, .of_row = 3 * row, .of_head = width, .first = number * row};
  };
  return {.batch = qkv[0],
          .queries = length,
          .keys = length,
          .heads = heads,
          .query_heads = {.count = heads, .of_first = 0},
          .width = width,
          .q = part(0),
          .k = part(1),
          .v = part(2),
          .out = {.of_sequence = length * row, .of_row = row, .of_head = width},
          .scale = 1.0F / __builtin_sqrtf(static_cast<float>(width))};
}

/// q, out: [B, T, heads, D]   k, v: [B, S, H, D]   The scale 0 stands for 1/√D.
inline AttentionShape separate_shape(const graph::Attributes& attributes, const QueryHeads& heads,
                                     const std::int64_t* q, const std::int64_t* k) {
  const std::int64_t width = k[3];
  const std::int64_t row = heads.count * width;
  const std::int64_t key_row = k[2] * width;
  const HeadRows of_queries = {.of_sequence = q[1] * row,
                               .of_row = row,
                               .of_head = heads.group * width,
                               .of_group = width,
                               .first = -heads.skipped * width};
  const HeadRows of_keys = {.of_sequence = k[1] * key_row, .of_row = key_row, .of_head = width};
  const auto scale = static_cast<float>(attributes.real("scale"));
  return {.batch = q[0],
          .queries = q[1],
          .keys = k[1],
          .heads = k[2],
          .query_heads = heads,
          .width = width,
          .q = of_queries,
          .k = of_keys,
          .v = of_keys,
          .out = of_queries,
          .causal = attributes.integer("causal") == 1,
          .window = attributes.integer("window"),
          .scale = scale != 0 ? scale : 1.0F / __builtin_sqrtf(static_cast<float>(width))};
}

// Tiles.

/// Rows of one head as a float32 matrix. They are read in place, or copied to scratch if the tensor is bfloat16.
class Panel {
 public:
  struct Rows {
    float* data;
    std::int64_t stride;
  };

  /// At most `rows` rows are used at once. If the tensor is bfloat16, this takes floats(…) floats from `scratch`.
  Panel(const TensorView& tensor, const HeadRows& place, const Head& head, std::int64_t rows, std::int64_t width,
        float*& scratch)
      : rows_(reals<Reals>(tensor) + place.begin(head)), stride_(place.of_row), width_(width), room_(scratch) {
    scratch += floats(tensor.dtype, rows, width);
  }

  [[nodiscard]] static std::int64_t floats(graph::DType dtype, std::int64_t rows, std::int64_t width) {
    return dtype == graph::DType::bf16 ? rows * width : 0;
  }

  /// Rows [first, first + count), for reading.
  [[nodiscard]] Matrix read(std::int64_t first, std::int64_t count) const {
    const Rows found = room(first);
    for (std::int64_t r = 0; rows_.bfloat && r < count; ++r) {
      const Reals from = rows_ + (first + r) * stride_;
      float* to = room_ + r * width_;
      vectors(0, width_, [=](auto at) { store(to, at, load(from, at)); });
    }
    return {found.data, found.stride};
  }

  /// Room in which to compute the rows from `first` on. `finish` stores them in the tensor.
  [[nodiscard]] Rows room(std::int64_t first) const {
    return rows_.bfloat ? Rows{room_, width_} : Rows{(rows_ + first * stride_).floats(), stride_};
  }
  void finish(std::int64_t first, std::int64_t count) const {
    for (std::int64_t r = 0; rows_.bfloat && r < count; ++r) {
      const float* from = room_ + r * width_;
      const Reals to = rows_ + (first + r) * stride_;
      vectors(0, width_, [=](auto at) { store(to, at, load(from, at)); });
    }
  }

 private:
  Reals rows_;
  std::int64_t stride_;
  std::int64_t width_;
  float* room_;
};

[[nodiscard]] inline Matrix transposed(Matrix matrix) {
  matrix.transposed = true;
  return matrix;
}
/// The matrix without the rows before `first`.
[[nodiscard]] inline Matrix rows_from(const Matrix& matrix, std::int64_t first) {
  return {matrix.data + first * matrix.stride, matrix.stride};
}

/// Calls body(task, scratch) for every task; `scratch` is the thread's own.
template <typename Body>
void for_each_task(const KernelCall& call, const AttentionShape& at, std::int64_t tasks, std::int64_t scratch_floats,
                   const Body& body) {
  auto* scratch = reinterpret_cast<float*>(call.scratch.data());
  const int parts = at.parts(tasks, call.threads.count());
  call.threads.run(parts, [&](int part) {
    for (std::int64_t task = tasks * part / parts; task < tasks * (part + 1) / parts; ++task) {
      body(task, scratch + part * scratch_floats);
    }
  });
}

/// Scratch bytes of all threads; 0 if there are no queries. The gap after the last row of scores is not counted:
/// nothing writes to it, and every page of scratch must be written, so that the memory in use equals the plan.
inline std::size_t bytes_of_threads(const AttentionShape& at, std::int64_t tasks, int threads, std::int64_t floats) {
  const std::int64_t all = at.tile_floats() > 0 ? at.parts(tasks, threads) * floats : 0;
  return static_cast<std::size_t>(all > 0 ? all - row_gap : 0) * sizeof(float);
}

/// Dropout of one op's probabilities. `stream` is null if the rate is 0. `queries`, `keys`: those of the whole tensor.
struct Dropped {
  const DropoutStream* stream;
  std::int64_t first_sample;
  QueryHeads heads;
  std::int64_t first_query;
  std::int64_t queries;
  std::int64_t keys;

  /// Calls use(first, last, factors) for consecutive parts of the keys `seen` by a query.
  template <typename Use>
  void row(const Head& head, std::int64_t query, const Keys& seen, const Use& use) const {
    const std::int64_t number = heads.number_of_all(head.head, head.group);
    const std::int64_t begin = (number * queries + first_query + query) * keys;
    const auto relative = [&](std::int64_t from, std::int64_t to, const float* factors) {
      use(from - begin, to - begin, factors);
    };
    stream->factors(first_sample + head.sequence, begin + seen.first, begin + seen.last, relative);
  }
};

/// One call of attention: its sizes, operands and log-sum-exp, and the settings that change scores and probabilities.
struct Attention {
  AttentionShape shape;
  const TensorView& q;
  const TensorView& k;
  const TensorView& v;
  const TensorView& out;
  const TensorView& lse;
  Dropped dropped;
  const TensorView* mask = nullptr;  ///< [T, S], added to the scores; null: none

  /// The log-sum-exp of each query of a head. lse: [B, heads of queries, T]
  [[nodiscard]] Reals lse_of(const Head& at) const {
    const QueryHeads& heads = shape.query_heads;
    return reals<Reals>(lse) + (at.sequence * heads.count + heads.of(at.head, at.group)) * shape.queries;
  }

  /// Adds the mask to the scores of `rows` queries from `begin` on, for the keys `seen`.
  void add_mask(float* scores, std::int64_t begin, std::int64_t rows, const Keys& seen) const {
    const std::int64_t stride = shape.score_stride();
    for (std::int64_t r = 0; mask != nullptr && r < rows; ++r) {
      const Reals added = reals<Reals>(*mask) + ((begin + r) * shape.keys + seen.first);
      float* row = scores + r * stride;
      vectors(0, seen.last - seen.first, [=](auto at) { store(row, at, load(row, at) + load(added, at)); });
    }
  }
};

/// qkv: [B, T, 3, H, D]
inline Dropped packed_dropped(const KernelCall& call, const DropoutStream& stream) {
  const TensorView& qkv = call.inputs[0];
  return {.stream = call.attributes.real("dropout") > 0 ? &stream : nullptr,
          .first_sample = call.scalars.first_sample + qkv.origin[0],
          .heads = {.of_first = qkv.origin[3]},
          .first_query = 0,
          .queries = qkv.shape[1],
          .keys = qkv.shape[1]};
}

/// k: [B, S, H, D]
inline Dropped separate_dropped(const KernelCall& call, const DropoutStream& stream) {
  const TensorView& q = call.inputs[0];
  return {.stream = call.attributes.real("dropout") > 0 ? &stream : nullptr,
          .first_sample = call.scalars.first_sample + q.origin[0],
          .heads = query_heads(call.attributes, q, call.inputs[1]),
          .first_query = q.origin[1],
          .queries = q.global[1],
          .keys = call.inputs[1].shape[1]};
}

/// The shape of a call. It includes the place of this shard's queries in the whole tensor.
inline AttentionShape separate_shape_of(const KernelCall& call) {
  const QueryHeads heads = query_heads(call.attributes, call.inputs[0], call.inputs[1]);
  AttentionShape at = separate_shape(call.attributes, heads, call.inputs[0].shape.data(), call.inputs[1].shape.data());
  at.first_query = call.inputs[0].origin[1];
  return at;
}

/// The same from shapes alone, for the size of the scratch, which does not depend on the heads that a shard lacks.
inline AttentionShape separate_shape_of(const graph::OpShape& shape) {
  TensorView q;
  TensorView k;
  for (std::size_t d = 0; d < shape.inputs[0].shape.size(); ++d) {
    q.shape[d] = shape.inputs[0].shape[d];
  }
  for (std::size_t d = 0; d < shape.inputs[1].shape.size(); ++d) {
    k.shape[d] = shape.inputs[1].shape[d];
  }
  return separate_shape(shape.attributes, query_heads(shape.attributes, q, k), q.shape.data(), k.shape.data());
}

inline std::int64_t whole_vectors(std::int64_t count) { return (count + lanes - 1) / lanes * lanes; }

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
