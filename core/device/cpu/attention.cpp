#include "core/device/cpu/attention.h"

#include "core/device/cpu/vec_math.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

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
  const std::int64_t tile = smaller(tile_rows, at.length);
  const Panel queries(qkv, at.qkv_begin(b, h, 0), at.qkv_stride(), tile, at.width, scratch);
  const Panel keys(qkv, at.qkv_begin(b, h, 1), at.qkv_stride(), at.length, at.width, scratch);
  const Panel values(qkv, at.qkv_begin(b, h, 2), at.qkv_stride(), at.length, at.width, scratch);
  const Panel out(call.outputs[0], at.out_begin(b, h), at.out_stride(), tile, at.width, scratch);
  const Reals lse = reals<Reals>(call.outputs[1]) + (b * at.heads + h) * at.length;
  const Matrix k = keys.read(0, at.length);
  const Matrix v = values.read(0, at.length);
  float* scores = scratch;
  const std::int64_t stride = at.score_stride();
  const float scale = 1.0F / __builtin_sqrtf(static_cast<float>(at.width));
  for (std::int64_t begin = 0; begin < at.length; begin += tile_rows) {
    const std::int64_t end = smaller(begin + tile_rows, at.length);
    const std::int64_t rows = end - begin;
    sgemm(rows, end, at.width, scale, queries.read(begin, rows), transposed(k), scores, stride, false);
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
    const Panel::Rows tile_out = out.room(begin);
    sgemm(rows, at.width, end, 1, {scores, stride}, v, tile_out.data, tile_out.stride, false);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = tile_out.data + r * tile_out.stride;
      const float factor = inverse[r];
      vectors(0, at.width, [=](auto i) { store(row, i, load(row, i) * factor); });
    }
    out.finish(begin, rows);
  }
}

/// Floats of scratch of one thread.
std::int64_t floats_of_thread(const QkvShape& at, graph::DType qkv, graph::DType out) {
  const std::int64_t tile = smaller(tile_rows, at.length);
  return Panel::floats(qkv, tile + 2 * at.length, at.width) + Panel::floats(out, tile, at.width) + at.tile_floats();
}

/// qkv -> out, lse
void attention(const KernelCall& call) {
  const QkvShape at = layout_of(call.inputs[0].shape.data());
  const DropoutStream stream(call, call.attributes.real("dropout"));
  const Dropped dropped = dropped_by(call, stream);
  for_each_pair(call, at, floats_of_thread(at, call.inputs[0].dtype, call.outputs[0].dtype),
                [&](std::int64_t b, std::int64_t h, float* scratch) { attend(call, at, dropped, b, h, scratch); });
}

std::size_t scratch_bytes(const graph::OpShape& shape, int threads) {
  const QkvShape at = layout_of(shape.inputs[0].shape.data());
  return bytes_of_threads(at, threads, floats_of_thread(at, shape.inputs[0].dtype, shape.outputs[0].dtype));
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(attention, {"attention", {attention, scratch_bytes}})
