#include "core/device/cpu/attention.h"
#include "core/device/cpu/vec_math.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

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
  const Panel queries(qkv, at.qkv_begin(b, h, 0), step, tile, at.width, scratch);
  const Panel keys(qkv, at.qkv_begin(b, h, 1), step, at.length, at.width, scratch);
  const Panel values(qkv, at.qkv_begin(b, h, 2), step, at.length, at.width, scratch);
  const Panel dqueries(dqkv, at.qkv_begin(b, h, 0), step, tile, at.width, scratch);
  const Panel dkeys(dqkv, at.qkv_begin(b, h, 1), step, at.length, at.width, scratch);
  const Panel dvalues(dqkv, at.qkv_begin(b, h, 2), step, at.length, at.width, scratch);
  const Panel out(call.inputs[1], at.out_begin(b, h), at.out_stride(), tile, at.width, scratch);
  const Panel dout(call.inputs[3], at.out_begin(b, h), at.out_stride(), tile, at.width, scratch);
  const Reals lse = reals<Reals>(call.inputs[2]) + (b * at.heads + h) * at.length;
  const Matrix k = keys.read(0, at.length);
  const Matrix v = values.read(0, at.length);
  const Panel::Rows dk = dkeys.room(0);
  const Panel::Rows dv = dvalues.room(0);
  float* scores = scratch;
  float* dscores = scores + at.tile_floats();
  const std::int64_t stride = at.score_stride();
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(at.width));
  for (std::int64_t begin = (at.length - 1) / tile_rows * tile_rows; begin >= 0; begin -= tile_rows) {
    const std::int64_t end = smaller(begin + tile_rows, at.length);
    const std::int64_t rows = end - begin;
    const bool later_tiles = end < at.length;
    const Matrix tile_q = queries.read(begin, rows);
    const Matrix tile_out = out.read(begin, rows);
    const Matrix tile_dout = dout.read(begin, rows);
    sgemm(rows, end, at.width, scale, tile_q, transposed(k), scores, stride, false);
    sgemm(rows, end, at.width, 1, tile_dout, transposed(v), dscores, stride, false);
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
    const Panel::Rows tile_dq = dqueries.room(begin);
    sgemm(rows, at.width, end, scale, {dscores, stride}, k, tile_dq.data, tile_dq.stride, false);
    dqueries.finish(begin, rows);
    sgemm(end, at.width, rows, scale, {dscores, stride, true}, tile_q, dk.data, dk.stride, later_tiles);
    sgemm(end, at.width, rows, 1, {scores, stride, true}, tile_dout, dv.data, dv.stride, later_tiles);
  }
  dkeys.finish(0, at.length);
  dvalues.finish(0, at.length);
}

/// Element types of the tensors that a thread may widen.
struct Types {
  graph::DType qkv;
  graph::DType out;
  graph::DType dout;
  graph::DType dqkv;
};

/// Floats of scratch of one thread.
std::int64_t floats_of_gradient(const QkvShape& at, const Types& types) {
  const std::int64_t tile = smaller(tile_rows, at.length);
  const std::int64_t three_parts = tile + 2 * at.length;
  return Panel::floats(types.qkv, three_parts, at.width) + Panel::floats(types.dqkv, three_parts, at.width) +
         Panel::floats(types.out, tile, at.width) + Panel::floats(types.dout, tile, at.width) + 2 * at.tile_floats();
}

/// qkv, out, lse, dout -> dqkv
void attention_gradient(const KernelCall& call) {
  const QkvShape at = layout_of(call.inputs[0].shape.data());
  const DropoutStream stream(call, call.attributes.real("dropout"));
  const Dropped dropped = dropped_by(call, stream);
  const Types types = {call.inputs[0].dtype, call.inputs[1].dtype, call.inputs[3].dtype, call.outputs[0].dtype};
  for_each_pair(call, at, floats_of_gradient(at, types), [&](std::int64_t b, std::int64_t h, float* scratch) {
    attend_gradient(call, at, dropped, b, h, scratch);
  });
}

std::size_t gradient_bytes(const graph::OpShape& shape, int threads) {
  const QkvShape at = layout_of(shape.inputs[0].shape.data());
  const Types types = {shape.inputs[0].dtype, shape.inputs[1].dtype, shape.inputs[3].dtype, shape.outputs[0].dtype};
  return bytes_of_threads(at, threads, floats_of_gradient(at, types));
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(attention_gradient, {"attention_gradient", {attention_gradient, gradient_bytes}})
