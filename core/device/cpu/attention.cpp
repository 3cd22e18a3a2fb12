#include "core/device/cpu/random.h"
#include "core/device/cpu/sgemm.h"
#include "core/device/cpu/vec_math.h"
#include "core/device/cpu/views.h"

// Causal attention over tiles of query rows. Scratch holds the scores of one tile against all its visible keys, never a
// whole matrix of scores, and float32 copies of one pair's bfloat16 operands. A thread owns whole (sequence, head)
// pairs.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

constexpr std::int64_t tile_rows = 32;
constexpr std::int64_t row_gap = 16;  // floats between two rows of scores, which nothing touches

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

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

QkvShape layout_of(const std::int64_t* qkv_shape) { return {qkv_shape[0], qkv_shape[1], qkv_shape[3], qkv_shape[4]}; }

/// A part of a tensor as a float32 matrix: rows in place, or widened in scratch.
struct Panel {
  float* data;
  std::int64_t stride;
};

/// Hands out a thread's scratch. For a bfloat16 tensor a panel is memory of its own.
class Panels {
 public:
  explicit Panels(float* scratch) : scratch_(scratch) {}

  Panel panel(const TensorView& tensor, std::int64_t rows, std::int64_t width) {
    if (tensor.dtype != graph::DType::bf16) {
      return {nullptr, 0};
    }
    const Panel made = {scratch_, width};
    scratch_ += rows * width;
    return made;
  }
  [[nodiscard]] float* rest() const { return scratch_; }

 private:
  float* scratch_;
};

/// Rows of a tensor from element `begin` on, `stride` elements apart.
struct Rows {
  Reals data;
  std::int64_t stride;

  [[nodiscard]] Rows from_row(std::int64_t row) const { return {data + row * stride, stride}; }
};
Rows rows_at(const TensorView& tensor, std::int64_t begin, std::int64_t stride) {
  return {reals<Reals>(tensor) + begin, stride};
}

/// The rows as float32, for reading.
Panel widened(const Rows& rows, const Panel& panel, std::int64_t count, std::int64_t width) {
  if (!rows.data.bfloats) {
    return {rows.data.floats(), rows.stride};
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const Reals from = rows.data + r * rows.stride;
    float* to = panel.data + r * width;
    vectors(0, width, [=](auto at) { store(to, at, load(from, at)); });
  }
  return panel;
}

/// Where to compute the rows. `finish` then stores them.
Panel room_for(const Rows& rows, const Panel& panel) {
  return rows.data.bfloats ? panel : Panel{rows.data.floats(), rows.stride};
}
void finish(const Rows& rows, const Panel& panel, std::int64_t count, std::int64_t width) {
  for (std::int64_t r = 0; rows.data.bfloats && r < count; ++r) {
    const float* from = panel.data + r * width;
    const Reals to = rows.data + r * rows.stride;
    vectors(0, width, [=](auto at) { store(to, at, load(from, at)); });
  }
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

Dropped dropped_by(const KernelCall& call, const DropoutStream& stream) {
  const TensorView& qkv = call.inputs[0];
  const bool any = call.attributes.real("dropout") > 0;
  return {any ? &stream : nullptr, call.scalars.first_sample + qkv.origin[0], qkv.origin[3], qkv.shape[1]};
}

std::int64_t whole_vectors(std::int64_t count) { return (count + lanes - 1) / lanes * lanes; }

/// Turns the scores of one query into exp(score - max) over the `visible` keys and zeros up to `end`.
struct Softmax {
  float max;
  float sum;
};
Softmax softmax_row(float* scores, std::int64_t visible, std::int64_t end) {
  const std::int64_t whole = whole_vectors(visible);
  for (std::int64_t j = visible; j < whole; ++j) {
    scores[j] = lowest;
  }
  const float max = largest_of(whole, [=](auto at) { return load(scores, at); });
  const float sum = sum_of(whole, [=](auto at) {
    const vec e = exp(load(scores, at) - max);
    store(scores, at, e);
    return e;
  });
  for (std::int64_t j = whole; j < end; ++j) {
    scores[j] = 0;
  }
  return {max, sum};
}

void attend(const KernelCall& call, const QkvShape& at, const Dropped& dropped, std::int64_t b, std::int64_t h,
            float* scratch) {
  const TensorView& qkv = call.inputs[0];
  Panels panels(scratch);
  const Panel q_panel = panels.panel(qkv, smaller(tile_rows, at.length), at.width);
  const Panel k_panel = panels.panel(qkv, at.length, at.width);
  const Panel v_panel = panels.panel(qkv, at.length, at.width);
  const Panel out_panel = panels.panel(call.outputs[0], smaller(tile_rows, at.length), at.width);
  float* scores = panels.rest();
  const Rows q = rows_at(qkv, at.qkv_begin(b, h, 0), at.qkv_stride());
  const Panel k = widened(rows_at(qkv, at.qkv_begin(b, h, 1), at.qkv_stride()), k_panel, at.length, at.width);
  const Panel v = widened(rows_at(qkv, at.qkv_begin(b, h, 2), at.qkv_stride()), v_panel, at.length, at.width);
  const Rows out = rows_at(call.outputs[0], at.out_begin(b, h), at.out_stride());
  const Reals lse = reals<Reals>(call.outputs[1]) + (b * at.heads + h) * at.length;
  const std::int64_t stride = at.score_stride();
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(at.width));
  for (std::int64_t begin = 0; begin < at.length; begin += tile_rows) {
    const std::int64_t end = smaller(begin + tile_rows, at.length);
    const std::int64_t rows = end - begin;
    const Panel tile_q = widened(q.from_row(begin), q_panel, rows, at.width);
    sgemm(rows, end, at.width, scale, {tile_q.data, tile_q.stride}, {k.data, k.stride, true}, scores, stride, false);
    float inverse[tile_rows];
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = scores + r * stride;
      const Softmax softmax = softmax_row(row, begin + r + 1, end);
      inverse[r] = 1.0F / softmax.sum;
      put(lse, begin + r, softmax.max + __builtin_logf(softmax.sum));
      if (dropped.stream != nullptr) {
        dropped.row({b, h, begin + r}, [=](std::int64_t first, std::int64_t last, const float* factors) {
          vectors(0, last - first, [=](auto i) { store(row + first, i, load(row + first, i) * load(factors, i)); });
        });
      }
    }
    const Panel tile_out = room_for(out.from_row(begin), out_panel);
    sgemm(rows, at.width, end, 1, {scores, stride}, {v.data, v.stride}, tile_out.data, tile_out.stride, false);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = tile_out.data + r * tile_out.stride;
      const float factor = inverse[r];
      vectors(0, at.width, [=](auto i) { store(row, i, load(row, i) * factor); });
    }
    finish(out.from_row(begin), out_panel, rows, at.width);
  }
}

/// Floats of scratch of one thread.
std::int64_t attention_floats(graph::DType qkv, graph::DType out, const QkvShape& at) {
  const std::int64_t tile = smaller(tile_rows, at.length) * at.width;
  const std::int64_t whole = at.length * at.width;
  return (qkv == graph::DType::bf16 ? tile + 2 * whole : 0) + (out == graph::DType::bf16 ? tile : 0) + at.tile_floats();
}

/// qkv -> out, lse
void attention(const KernelCall& call) {
  const QkvShape at = layout_of(call.inputs[0].shape.data());
  const DropoutStream stream(call, call.attributes.real("dropout"));
  const Dropped dropped = dropped_by(call, stream);
  for_each_pair(call, at, attention_floats(call.inputs[0].dtype, call.outputs[0].dtype, at),
                [&](std::int64_t b, std::int64_t h, float* scratch) { attend(call, at, dropped, b, h, scratch); });
}

/// One query's row: scores become P, dscores, which hold dO·V, become dS = P (dO·V - D).
void gradient_row(float* scores, float* dscores, std::int64_t whole, float lse, float dout_out) {
  vectors(0, whole, [=](auto at) {
    const vec p = exp(load(scores, at) - lse);
    store(scores, at, p);
    store(dscores, at, p * (load(dscores, at) - dout_out));
  });
}

/// The same with dropout's factors f: scores become P f, dscores P (f dO·V - D).
void dropped_gradient_row(const Dropped& dropped, const Query& query, float* scores, float* dscores, float lse,
                          float dout_out) {
  vectors(0, query.position + 1, [=](auto at) { store(scores, at, exp(load(scores, at) - lse)); });
  dropped.row(query, [=](std::int64_t first, std::int64_t last, const float* factors) {
    vectors(0, last - first, [=](auto at) {
      const vec p = load(scores + first, at);
      const vec f = load(factors, at);
      store(scores + first, at, p * f);
      store(dscores + first, at, p * (load(dscores + first, at) * f - dout_out));
    });
  });
}

/// Dao et al. 2022, arXiv:2205.14135, appendix B.4. Tiles go from the last to the first: the last one sees all keys,
/// so it writes the gradients of keys and values to which the others add.
void attend_gradient(const KernelCall& call, const QkvShape& at, const Dropped& dropped, std::int64_t b, std::int64_t h,
                     float* scratch) {
  const TensorView& qkv = call.inputs[0];
  const TensorView& dqkv = call.outputs[0];
  const std::int64_t step = at.qkv_stride();
  const std::int64_t tile = smaller(tile_rows, at.length);
  Panels panels(scratch);
  const Panel q_panel = panels.panel(qkv, tile, at.width);
  const Panel k_panel = panels.panel(qkv, at.length, at.width);
  const Panel v_panel = panels.panel(qkv, at.length, at.width);
  const Panel dq_panel = panels.panel(dqkv, tile, at.width);
  const Panel dk_panel = panels.panel(dqkv, at.length, at.width);
  const Panel dv_panel = panels.panel(dqkv, at.length, at.width);
  const Panel out_panel = panels.panel(call.inputs[1], tile, at.width);
  const Panel dout_panel = panels.panel(call.inputs[3], tile, at.width);
  float* scores = panels.rest();
  const Rows q = rows_at(qkv, at.qkv_begin(b, h, 0), step);
  const Panel k = widened(rows_at(qkv, at.qkv_begin(b, h, 1), step), k_panel, at.length, at.width);
  const Panel v = widened(rows_at(qkv, at.qkv_begin(b, h, 2), step), v_panel, at.length, at.width);
  const Rows dq = rows_at(dqkv, at.qkv_begin(b, h, 0), step);
  const Rows dk_rows = rows_at(dqkv, at.qkv_begin(b, h, 1), step);
  const Rows dv_rows = rows_at(dqkv, at.qkv_begin(b, h, 2), step);
  const Panel dk = room_for(dk_rows, dk_panel);
  const Panel dv = room_for(dv_rows, dv_panel);
  const Rows out = rows_at(call.inputs[1], at.out_begin(b, h), at.out_stride());
  const Reals lse = reals<Reals>(call.inputs[2]) + (b * at.heads + h) * at.length;
  const Rows dout = rows_at(call.inputs[3], at.out_begin(b, h), at.out_stride());
  const std::int64_t stride = at.score_stride();
  float* dscores = scores + at.tile_floats();
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(at.width));
  for (std::int64_t begin = (at.length - 1) / tile_rows * tile_rows; begin >= 0; begin -= tile_rows) {
    const std::int64_t end = smaller(begin + tile_rows, at.length);
    const std::int64_t rows = end - begin;
    const bool later_tiles = end < at.length;
    const Panel tile_q = widened(q.from_row(begin), q_panel, rows, at.width);
    const Panel tile_out = widened(out.from_row(begin), out_panel, rows, at.width);
    const Panel tile_dout = widened(dout.from_row(begin), dout_panel, rows, at.width);
    const Matrix q_matrix = {tile_q.data, tile_q.stride};
    const Matrix dout_matrix = {tile_dout.data, tile_dout.stride};
    sgemm(rows, end, at.width, scale, q_matrix, {k.data, k.stride, true}, scores, stride, false);
    sgemm(rows, end, at.width, 1, dout_matrix, {v.data, v.stride, true}, dscores, stride, false);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = scores + r * stride;
      float* drow = dscores + r * stride;
      const float* out_row = tile_out.data + r * tile_out.stride;
      const float* dout_row = tile_dout.data + r * tile_dout.stride;
      const float dout_out = sum_of(at.width, [=](auto i) { return load(out_row, i) * load(dout_row, i); });
      const std::int64_t visible = begin + r + 1;
      if (dropped.stream == nullptr) {
        gradient_row(row, drow, whole_vectors(visible), get(lse, begin + r), dout_out);
      } else {
        dropped_gradient_row(dropped, {b, h, begin + r}, row, drow, get(lse, begin + r), dout_out);
      }
      for (std::int64_t j = visible; j < end; ++j) {
        row[j] = 0;
        drow[j] = 0;
      }
    }
    const Panel tile_dq = room_for(dq.from_row(begin), dq_panel);
    sgemm(rows, at.width, end, scale, {dscores, stride}, {k.data, k.stride}, tile_dq.data, tile_dq.stride, false);
    finish(dq.from_row(begin), dq_panel, rows, at.width);
    sgemm(end, at.width, rows, scale, {dscores, stride, true}, q_matrix, dk.data, dk.stride, later_tiles);
    sgemm(end, at.width, rows, 1, {scores, stride, true}, dout_matrix, dv.data, dv.stride, later_tiles);
  }
  finish(dk_rows, dk_panel, at.length, at.width);
  finish(dv_rows, dv_panel, at.length, at.width);
}

std::int64_t gradient_floats(graph::DType qkv, graph::DType out, graph::DType dout, graph::DType dqkv,
                             const QkvShape& at) {
  const std::int64_t tile = smaller(tile_rows, at.length) * at.width;
  const std::int64_t whole = at.length * at.width;
  const auto panels = [](graph::DType dtype, std::int64_t floats) { return dtype == graph::DType::bf16 ? floats : 0; };
  return panels(qkv, tile + 2 * whole) + panels(dqkv, tile + 2 * whole) + panels(out, tile) + panels(dout, tile) +
         2 * at.tile_floats();
}

/// qkv, out, lse, dout -> dqkv
void attention_gradient(const KernelCall& call) {
  const QkvShape at = layout_of(call.inputs[0].shape.data());
  const DropoutStream stream(call, call.attributes.real("dropout"));
  const Dropped dropped = dropped_by(call, stream);
  for_each_pair(
      call, at,
      gradient_floats(call.inputs[0].dtype, call.inputs[1].dtype, call.inputs[3].dtype, call.outputs[0].dtype, at),
      [&](std::int64_t b, std::int64_t h, float* scratch) { attend_gradient(call, at, dropped, b, h, scratch); });
}

/// Of all threads. Behind the last row of scores a gap is not planned: it could reach into a page that nothing touches.
std::size_t bytes_of_threads(const QkvShape& at, int threads, std::int64_t floats) {
  const std::int64_t all = at.parts(threads) * floats;
  return static_cast<std::size_t>(all > 0 ? all - row_gap : 0) * sizeof(float);
}

std::size_t attention_scratch(const graph::OpShape& shape, int threads) {
  const QkvShape at = layout_of(shape.inputs[0].shape.data());
  return bytes_of_threads(at, threads, attention_floats(shape.inputs[0].dtype, shape.outputs[0].dtype, at));
}

std::size_t gradient_scratch(const graph::OpShape& shape, int threads) {
  const QkvShape at = layout_of(shape.inputs[0].shape.data());
  return bytes_of_threads(
      at, threads,
      gradient_floats(shape.inputs[0].dtype, shape.inputs[1].dtype, shape.inputs[3].dtype, shape.outputs[0].dtype, at));
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(attention, {"attention", {attention, attention_scratch}},
                 {"attention_gradient", {attention_gradient, gradient_scratch}})
