#include "core/device/cpu/attention.h"
#include "core/device/cpu/vec_math.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// Computes one query's row, with D = `dout_out`. `scores` becomes P. `dscores` is dO·V and becomes dS = P (dO·V - D).
void gradient_row(float* scores, float* dscores, std::int64_t whole, float lse, float dout_out) {
  vectors(0, whole, [=](auto at) {
    const vec p = exp(load(scores, at) - lse);
    store(scores, at, p);
    store(dscores, at, p * (load(dscores, at) - dout_out));
  });
}

/// Like gradient_row(), with dropout's factors f. `scores` becomes P f, and `dscores` becomes P (f dO·V - D).
void dropped_gradient_row(float* scores, float* dscores, std::int64_t count, const float* factors, float lse,
                          float dout_out) {
  vectors(0, count, [=](auto at) {
    const vec p = exp(load(scores, at) - lse);
    const vec f = load(factors, at);
    store(scores, at, p * f);
    store(dscores, at, p * (load(dscores, at) * f - dout_out));
  });
}

/// Sets the elements of the keys that the query does not see to zero.
void clear_unseen(float* row, const Keys& seen, std::int64_t count) {
  for (std::int64_t j = 0; j < seen.first; ++j) {
    row[j] = 0;
  }
  for (std::int64_t j = seen.last; j < count; ++j) {
    row[j] = 0;
  }
}

void fill_zeros(const Panel::Rows& rows, std::int64_t width, const Keys& keys) {
  for (std::int64_t j = keys.first; j < keys.last; ++j) {
    float* row = rows.data + j * rows.stride;
    vectors(0, width, [=](auto at) { store(row, at, vec{}); });
  }
}

/// Adds to the gradient of keys or values, for the keys that a tile sees: to[keys] (+)= alpha weights^T tile. Rows of
/// `to` from `begun` on already hold sums. Those before `begun` are overwritten.
void add_to_keys(const Panel::Rows& to, const Keys& keys, std::int64_t begun, float alpha, const Matrix& weights,
                 const Matrix& tile, std::int64_t rows, std::int64_t width) {
  const std::int64_t middle = smaller(larger_of(begun, keys.first), keys.last);
  if (middle > keys.first) {
    sgemm(middle - keys.first, width, rows, alpha, transposed(weights), tile, to.data + keys.first * to.stride,
          to.stride, false);
  }
  if (middle < keys.last) {
    const Matrix rest = {weights.data + (middle - keys.first), weights.stride, true};
    sgemm(keys.last - middle, width, rows, alpha, rest, tile, to.data + middle * to.stride, to.stride, true);
  }
}

/// The tensors of the gradient, in addition to attention's own.
struct AttentionGradient {
  Attention on;
  const TensorView& dout;
  const TensorView& dq;
  const TensorView& dk;
  const TensorView& dv;
};

/// Dao et al. 2022, arXiv:2205.14135, appendix B.4, for one head of queries. Tiles go from the last to the first, so
/// the first key that a tile sees never increases. For keys that no earlier tile has seen, a tile overwrites the
/// gradients of keys and values. For other keys it adds to them. The first head of a group starts these sums, and its
/// last head stores them.
void attend_gradient(const AttentionGradient& of, const Head& head, float* scratch) {
  const Attention& on = of.on;
  const AttentionShape& at = on.shape;
  const Panel queries(on.q, at.q, head, at.tile(), at.width, scratch);
  const Panel keys(on.k, at.k, head, at.keys, at.width, scratch);
  const Panel values(on.v, at.v, head, at.keys, at.width, scratch);
  const Panel dqueries(of.dq, at.q, head, at.tile(), at.width, scratch);
  const Panel dkeys(of.dk, at.k, head, at.keys, at.width, scratch);
  const Panel dvalues(of.dv, at.v, head, at.keys, at.width, scratch);
  const Panel out(on.out, at.out, head, at.tile(), at.width, scratch);
  const Panel dout(of.dout, at.out, head, at.tile(), at.width, scratch);
  const Reals lse = on.lse_of(head);
  const Matrix k = keys.read(0, at.keys);
  const Matrix v = values.read(0, at.keys);
  const Panel::Rows dk = dkeys.room(0);
  const Panel::Rows dv = dvalues.room(0);
  float* scores = scratch;
  float* dscores = scores + at.tile_floats();
  const std::int64_t stride = at.score_stride();
  const bool is_first = head.group == at.query_heads.first(head.head);
  std::int64_t begun = is_first ? at.visible(at.queries - 1).last : 0;
  if (is_first) {
    fill_zeros(dk, at.width, {begun, at.keys});
    fill_zeros(dv, at.width, {begun, at.keys});
  }
  for (std::int64_t begin = (at.queries - 1) / tile_rows * tile_rows; begin >= 0; begin -= tile_rows) {
    const std::int64_t rows = smaller(tile_rows, at.queries - begin);
    const Keys tile = at.visible(begin, begin + rows);
    const std::int64_t count = tile.last - tile.first;
    const Matrix tile_k = rows_from(k, tile.first);
    const Matrix tile_q = queries.read(begin, rows);
    const Matrix tile_out = out.read(begin, rows);
    const Matrix tile_dout = dout.read(begin, rows);
    sgemm(rows, count, at.width, at.scale, tile_q, transposed(tile_k), scores, stride, false);
    on.add_mask(scores, begin, rows, tile);
    sgemm(rows, count, at.width, 1, tile_dout, transposed(rows_from(v, tile.first)), dscores, stride, false);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = scores + r * stride;
      float* drow = dscores + r * stride;
      const float* out_row = tile_out.data + r * tile_out.stride;
      const float* dout_row = tile_dout.data + r * tile_dout.stride;
      const float dout_out = sum_of(at.width, [=](auto i) { return load(out_row, i) * load(dout_row, i); });
      const float row_lse = get(lse, begin + r);
      const Keys seen = at.visible(begin + r);
      if (on.dropped.stream == nullptr) {
        gradient_row(row, drow, whole_vectors(seen.last - tile.first), row_lse, dout_out);
      } else {
        on.dropped.row(head, begin + r, seen, [=](std::int64_t first, std::int64_t last, const float* factors) {
          const std::int64_t from = first - tile.first;
          dropped_gradient_row(row + from, drow + from, last - first, factors, row_lse, dout_out);
        });
      }
      clear_unseen(row, {seen.first - tile.first, seen.last - tile.first}, count);
      clear_unseen(drow, {seen.first - tile.first, seen.last - tile.first}, count);
    }
    const Panel::Rows tile_dq = dqueries.room(begin);
    sgemm(rows, at.width, count, at.scale, {dscores, stride}, tile_k, tile_dq.data, tile_dq.stride, false);
    dqueries.finish(begin, rows);
    add_to_keys(dk, tile, begun, at.scale, {dscores, stride}, tile_q, rows, at.width);
    add_to_keys(dv, tile, begun, 1, {scores, stride}, tile_dout, rows, at.width);
    begun = smaller(begun, tile.first);
  }
  fill_zeros(dk, at.width, {0, begun});
  fill_zeros(dv, at.width, {0, begun});
  if (head.group + 1 == at.query_heads.last(head.head)) {
    dkeys.finish(0, at.keys);
    dvalues.finish(0, at.keys);
  }
}

/// The types on which the scratch depends.
struct GradientTypes {
  graph::DType q;
  graph::DType k;
  graph::DType v;
  graph::DType out;
  graph::DType dout;
  graph::DType dq;
  graph::DType dk;
  graph::DType dv;
};
std::int64_t floats_of_gradient(const AttentionShape& at, const GradientTypes& types) {
  const auto tile = [&](graph::DType dtype) { return Panel::floats(dtype, at.tile(), at.width); };
  const auto keys = [&](graph::DType dtype) { return Panel::floats(dtype, at.keys, at.width); };
  return tile(types.q) + tile(types.out) + tile(types.dout) + tile(types.dq) + keys(types.k) + keys(types.v) +
         keys(types.dk) + keys(types.dv) + 2 * at.tile_floats();
}

/// Sets the tensor to zero: a shard without queries adds nothing to the gradients of keys and values.
void clear(const KernelCall& call, const TensorView& tensor) {
  const auto to = reals<Reals>(tensor);
  call.threads.split(tensor.elements(), grain, [=](std::int64_t begin, std::int64_t end) {
    vectors(begin, end, [=](auto at) { store(to, at, vec{}); });
  });
}

/// The number of tasks: one for each head of keys, because all heads of queries that use it add to its gradients.
std::int64_t gradient_tasks(const AttentionShape& at) { return at.batch * at.heads; }

void attend_all_gradient(const KernelCall& call, const AttentionGradient& of) {
  const AttentionShape& at = of.on.shape;
  if (at.queries * at.query_heads.count == 0) {
    clear(call, of.dk);
    clear(call, of.dv);
    return;
  }
  const std::int64_t floats = floats_of_gradient(at, {of.on.q.dtype, of.on.k.dtype, of.on.v.dtype, of.on.out.dtype,
                                                      of.dout.dtype, of.dq.dtype, of.dk.dtype, of.dv.dtype});
  for_each_task(call, at, gradient_tasks(at), floats, [&](std::int64_t task, float* scratch) {
    const std::int64_t head = task % at.heads;
    for (std::int64_t g = at.query_heads.first(head); g < at.query_heads.last(head); ++g) {
      attend_gradient(of, {task / at.heads, head, g}, scratch);
    }
  });
}

/// qkv, out, lse, dout -> dqkv
void attention_gradient(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const TensorView& dqkv = call.outputs[0];
  const DropoutStream stream(call, call.attributes.real("dropout"));
  attend_all_gradient(call, {.on = {.shape = packed_shape(qkv.shape.data()),
                                    .q = qkv,
                                    .k = qkv,
                                    .v = qkv,
                                    .out = call.inputs[1],
                                    .lse = call.inputs[2],
                                    .dropped = packed_dropped(call, stream)},
                             .dout = call.inputs[3],
                             .dq = dqkv,
                             .dk = dqkv,
                             .dv = dqkv});
}

std::size_t gradient_bytes(const graph::OpShape& shape, int threads) {
  const AttentionShape at = packed_shape(shape.inputs[0].shape.data());
  const graph::DType qkv = shape.inputs[0].dtype;
  const graph::DType dqkv = shape.outputs[0].dtype;
  const std::int64_t floats =
      floats_of_gradient(at, {qkv, qkv, qkv, shape.inputs[1].dtype, shape.inputs[3].dtype, dqkv, dqkv, dqkv});
  return bytes_of_threads(at, gradient_tasks(at), threads, floats);
}

/// q, k, v, out, lse, dout (, mask) -> dq, dk, dv
void separate_gradient(const KernelCall& call) {
  const DropoutStream stream(call, call.attributes.real("dropout"));
  attend_all_gradient(call, {.on = {.shape = separate_shape_of(call),
                                    .q = call.inputs[0],
                                    .k = call.inputs[1],
                                    .v = call.inputs[2],
                                    .out = call.inputs[3],
                                    .lse = call.inputs[4],
                                    .dropped = separate_dropped(call, stream),
                                    .mask = call.inputs.size() > 6 ? &call.inputs[6] : nullptr},
                             .dout = call.inputs[5],
                             .dq = call.outputs[0],
                             .dk = call.outputs[1],
                             .dv = call.outputs[2]});
}

std::size_t separate_gradient_bytes(const graph::OpShape& shape, int threads) {
  const graph::TensorType* in = shape.inputs.data();
  const graph::TensorType* out = shape.outputs.data();
  const AttentionShape at = separate_shape_of(shape);
  const std::int64_t floats = floats_of_gradient(
      at, {in[0].dtype, in[1].dtype, in[2].dtype, in[3].dtype, in[5].dtype, out[0].dtype, out[1].dtype, out[2].dtype});
  return bytes_of_threads(at, gradient_tasks(at), threads, floats);
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(attention_gradient, {"attention_gradient", {attention_gradient, gradient_bytes}},
                 {"scaled_dot_product_attention_gradient", {separate_gradient, separate_gradient_bytes}})
