#include "core/device/cpu/attention.h"

#include "core/device/cpu/vec_math.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// Turns one query's scores into exp(score - max) for the keys that it sees, and into 0 for the others before `end`.
struct Softmax {
  float max;
  float sum;
};
Softmax softmax_row(float* scores, const Keys& seen, std::int64_t end) {
  const std::int64_t whole = whole_vectors(seen.last);
  for (std::int64_t j = 0; j < seen.first; ++j) {
    scores[j] = lowest;
  }
  for (std::int64_t j = seen.last; j < whole; ++j) {
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

void attend(const Attention& on, const Head& head, float* scratch) {
  const AttentionShape& at = on.shape;
  const Panel queries(on.q, at.q, head, at.tile(), at.width, scratch);
  const Panel keys(on.k, at.k, head, at.keys, at.width, scratch);
  const Panel values(on.v, at.v, head, at.keys, at.width, scratch);
  const Panel out(on.out, at.out, head, at.tile(), at.width, scratch);
  const Reals lse = on.lse_of(head);
  const Matrix k = keys.read(0, at.keys);
  const Matrix v = values.read(0, at.keys);
  float* scores = scratch;
  const std::int64_t stride = at.score_stride();
  for (std::int64_t begin = 0; begin < at.queries; begin += tile_rows) {
    const std::int64_t rows = smaller(tile_rows, at.queries - begin);
    const Keys tile = at.visible(begin, begin + rows);
    const std::int64_t count = tile.last - tile.first;
    sgemm(rows, count, at.width, at.scale, queries.read(begin, rows), transposed(rows_from(k, tile.first)), scores,
          stride, false);
    on.add_mask(scores, begin, rows, tile);
    float inverse[tile_rows];
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = scores + r * stride;
      const Keys seen = at.visible(begin + r);
      const Softmax softmax = softmax_row(row, {seen.first - tile.first, seen.last - tile.first}, count);
      inverse[r] = 1.0F / softmax.sum;
      put(lse, begin + r, softmax.max + __builtin_logf(softmax.sum));
      if (on.dropped.stream != nullptr) {
        on.dropped.row(head, begin + r, seen, [=](std::int64_t first, std::int64_t last, const float* factors) {
          float* from = row + (first - tile.first);
          vectors(0, last - first, [=](auto i) { store(from, i, load(from, i) * load(factors, i)); });
        });
      }
    }
    const Panel::Rows tile_out = out.room(begin);
    sgemm(rows, at.width, count, 1, {scores, stride}, rows_from(v, tile.first), tile_out.data, tile_out.stride, false);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = tile_out.data + r * tile_out.stride;
      const float factor = inverse[r];
      vectors(0, at.width, [=](auto i) { store(row, i, load(row, i) * factor); });
    }
    out.finish(begin, rows);
  }
}

/// Floats of scratch per thread.
std::int64_t floats_of_thread(const AttentionShape& at, graph::DType q, graph::DType k, graph::DType v,
                              graph::DType out) {
  return Panel::floats(q, at.tile(), at.width) + Panel::floats(k, at.keys, at.width) +
         Panel::floats(v, at.keys, at.width) + Panel::floats(out, at.tile(), at.width) + at.tile_floats();
}

/// The number of tasks: one for each head of queries.
std::int64_t tasks_of(const AttentionShape& at) { return at.batch * at.query_heads.count; }

void attend_all(const KernelCall& call, const Attention& on) {
  const AttentionShape& at = on.shape;
  if (at.queries == 0) {
    return;
  }
  const std::int64_t floats = floats_of_thread(at, on.q.dtype, on.k.dtype, on.v.dtype, on.out.dtype);
  for_each_task(call, at, tasks_of(at), floats, [&](std::int64_t task, float* scratch) {
    const QueryHeads& heads = at.query_heads;
    const std::int64_t number = task % heads.count + heads.skipped;
    attend(on, {task / heads.count, number / heads.group, number % heads.group}, scratch);
  });
}

/// qkv -> out, lse
void attention(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const DropoutStream stream(call, call.attributes.real("dropout"));
  attend_all(call, {.shape = packed_shape(qkv.shape.data()),
                    .q = qkv,
                    .k = qkv,
                    .v = qkv,
                    .out = call.outputs[0],
                    .lse = call.outputs[1],
                    .dropped = packed_dropped(call, stream)});
}

std::size_t scratch_bytes(const graph::OpShape& shape, int threads) {
  const AttentionShape at = packed_shape(shape.inputs[0].shape.data());
  const graph::DType qkv = shape.inputs[0].dtype;
  return bytes_of_threads(at, tasks_of(at), threads, floats_of_thread(at, qkv, qkv, qkv, shape.outputs[0].dtype));
}

/// q, k, v (, mask) -> out, lse
void scaled_dot_product_attention(const KernelCall& call) {
  const DropoutStream stream(call, call.attributes.real("dropout"));
  attend_all(call, {.shape = separate_shape_of(call),
                    .q = call.inputs[0],
                    .k = call.inputs[1],
                    .v = call.inputs[2],
                    .out = call.outputs[0],
                    .lse = call.outputs[1],
                    .dropped = separate_dropped(call, stream),
                    .mask = call.inputs.size() > 3 ? &call.inputs[3] : nullptr});
}

std::size_t separate_scratch_bytes(const graph::OpShape& shape, int threads) {
  const AttentionShape at = separate_shape_of(shape);
  const std::int64_t floats =
      floats_of_thread(at, shape.inputs[0].dtype, shape.inputs[1].dtype, shape.inputs[2].dtype, shape.outputs[0].dtype);
  return bytes_of_threads(at, tasks_of(at), threads, floats);
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(attention, {"attention", {attention, scratch_bytes}},
                 {"scaled_dot_product_attention", {scaled_dot_product_attention, separate_scratch_bytes}})
