#pragma once

#include "core/device/cpu/random.h"
#include "core/device/cpu/sgemm.h"
#include "core/device/cpu/views.h"

/// Causal attention over tiles of query rows. Scratch holds the scores of one tile against all its visible keys, never
/// a whole matrix of scores, and float32 copies of one pair's bfloat16 operands. A thread owns whole (sequence, head)
/// pairs.
namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

inline constexpr std::int64_t tile_rows = 32;
inline constexpr std::int64_t row_gap = 16;  // floats between two rows of scores, which nothing touches

inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Sizes and addressing of qkv [B, T, 3, H, D], out [B, T, H, D] and lse [B, H, T].
struct QkvShape {
  std::int64_t batch;
  std::int64_t length;
  std::int64_t heads;
  std::int64_t width;

  [[nodiscard]] std::int64_t qkv_stride() const { return 3 * heads * width; }
  [[nodiscard]] std::int64_t out_stride() const { return heads * width; }
  /// Of position 0; part is 0 for queries, 1 for keys, 2 for values.
  [[nodiscard]] std::int64_t qkv_begin(std::int64_t b, std::int64_t h, int part) const {
    return b * length * qkv_stride() + (part * heads + h) * width;
  }
  [[nodiscard]] std::int64_t out_begin(std::int64_t b, std::int64_t h) const {
    return b * length * out_stride() + h * width;
  }

  /// Floats from one row of scores to the next: whole vectors of any instruction set, and no power of two.
  [[nodiscard]] std::int64_t score_stride() const { return (length + 15) / 16 * 16 + row_gap; }
  [[nodiscard]] std::int64_t tile_floats() const { return smaller(tile_rows, length) * score_stride(); }

  /// Among how many threads the pairs are shared; less than about 0.1 ms of work stays on one.
  [[nodiscard]] int parts(int threads) const {
    const std::int64_t pairs = batch * heads;
    const std::int64_t work = pairs * length * (length + 16) * (width + 16);
    const std::int64_t worthwhile = work / (1 << 20) + 1;
    return static_cast<int>(smaller(smaller(pairs, worthwhile), threads));
  }
};

inline QkvShape layout_of(const std::int64_t* qkv_shape) {
  return {qkv_shape[0], qkv_shape[1], qkv_shape[3], qkv_shape[4]};
}

/// Rows of one (sequence, head) pair as a float32 matrix: where they are, or in scratch if the tensor is bfloat16.
class Panel {
 public:
  struct Rows {
    float* data;
    std::int64_t stride;
  };

  /// `begin` is the element at which row 0 begins, and at most `rows` rows are used at once. Takes floats from
  /// `scratch` if it needs them.
  Panel(const TensorView& tensor, std::int64_t begin, std::int64_t stride, std::int64_t rows, std::int64_t width,
        float*& scratch)
      : rows_(reals<Reals>(tensor) + begin), stride_(stride), width_(width), room_(scratch) {
    scratch += floats(tensor.dtype, rows, width);
  }

  [[nodiscard]] static std::int64_t floats(graph::DType dtype, std::int64_t rows, std::int64_t width) {
    return dtype == graph::DType::bf16 ? rows * width : 0;
  }

  /// Rows [first, first + count), to read.
  [[nodiscard]] Matrix read(std::int64_t first, std::int64_t count) const {
    const Rows found = room(first);
    for (std::int64_t r = 0; rows_.bfloat && r < count; ++r) {
      const Reals from = rows_ + (first + r) * stride_;
      float* to = room_ + r * width_;
      vectors(0, width_, [=](auto at) { store(to, at, load(from, at)); });
    }
    return {found.data, found.stride};
  }

  /// Where to compute rows from `first` on. `finish` stores them.
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

/// Calls body(b, h, scratch) for every pair; `scratch` is the thread's own.
template <typename Body>
void for_each_pair(const KernelCall& call, const QkvShape& at, std::int64_t scratch_floats, const Body& body) {
  auto* scratch = reinterpret_cast<float*>(call.scratch.data());
  const std::int64_t pairs = at.batch * at.heads;
  const int parts = at.parts(call.threads.count());
  call.threads.run(parts, [&](int part) {
    for (std::int64_t pair = pairs * part / parts; pair < pairs * (part + 1) / parts; ++pair) {
      body(pair / at.heads, pair % at.heads, scratch + part * scratch_floats);
    }
  });
}

struct Query {
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t position;
};

/// Dropout of one op's probabilities; `stream` is null if the rate is zero.
struct Dropped {
  const DropoutStream* stream;
  std::int64_t first_sample;
  std::int64_t first_head;
  std::int64_t length;

  /// Calls use(first, last, factors) for stretches of the keys that a query sees.
  template <typename Use>
  void row(const Query& query, const Use& use) const {
    const std::int64_t begin = ((first_head + query.head) * length + query.position) * length;
    const auto relative = [&](std::int64_t from, std::int64_t to, const float* factors) {
      use(from - begin, to - begin, factors);
    };
    stream->factors(first_sample + query.sequence, begin, begin + query.position + 1, relative);
  }
};

inline Dropped dropped_by(const KernelCall& call, const DropoutStream& stream) {
  const TensorView& qkv = call.inputs[0];
  const bool any = call.attributes.real("dropout") > 0;
  return {any ? &stream : nullptr, call.scalars.first_sample + qkv.origin[0], qkv.origin[3], qkv.shape[1]};
}

inline std::int64_t whole_vectors(std::int64_t count) { return (count + lanes - 1) / lanes * lanes; }

/// Scratch of all threads. Behind the last row of scores a gap is not planned: it could reach into a page that nothing
/// touches.
inline std::size_t bytes_of_threads(const QkvShape& at, int threads, std::int64_t floats) {
  const std::int64_t all = at.parts(threads) * floats;
  return static_cast<std::size_t>(all > 0 ? all - row_gap : 0) * sizeof(float);
}

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
