#include "core/device/cuda/kernels/attention_gradient.h"

namespace shardrun::device::cuda {
namespace {

using attention::Gradients;
using attention::GradientTensors;
using attention::Head;
using attention::HeadRows;

/// Computes D_i of every query, one warp per query.
struct DoutOut {
  GradientTensors of;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const attention::Shape& shape = of.shape;
    const std::int64_t row = block.index() * block.warps() + block.warp();
    if (row >= shape.batch * shape.query_heads * shape.queries) {
      return;
    }
    const Head head = shape.head_of(row / shape.queries);
    const std::int64_t begin = head.begin(of.out) + row % shape.queries * of.out.of_row;
    float sum = 0;
    for (std::int64_t d = block.lane(); d < shape.width; d += warp_size) {
      sum += of.out.data.get(begin + d) * of.dout.get(begin + d);
    }
    sum = warp_sum(block, sum);
    if (block.lane() == 0) {
      of.dout_out[row] = sum;
    }
  }
};

void run_gradient(const KernelCall& call, const GradientTensors& of, const Gradients& to) {
  const attention::Shape& shape = of.shape;
  constexpr int warps = 4;
  const std::int64_t rows = shape.batch * shape.query_heads * shape.queries;
  launch(call, (rows + warps - 1) / warps, warps * warp_size, 0, DoutOut{of});
  const bool matrices =
      attention::all_bfloat({&of.q, &of.k, &of.v, &of.out, &to.dq, &to.dk, &to.dv}) && of.dout.is_bfloat;
  if (matrices && shape.width <= attention::widest) {
    attention::launch_gradient_matrices(call, of, to);
  } else {
    attention::launch_gradient_tiles(call, of, to);
  }
}

/// The layout of `out` and of its gradient, with packs only if both tensors are aligned.
HeadRows rows_of_both(HeadRows out, const TensorView& dout) {
  out.in_packs = out.in_packs && is_aligned(dout);
  out.in_eights = out.in_eights && is_aligned(dout);
  return out;
}

/// qkv, out, lse, dout -> dqkv
void packed_attention_gradient(const KernelCall& call) {
  const TensorView& qkv = call.inputs[0];
  const TensorView& dqkv = call.outputs[0];
  const HeadRows out = rows_of_both(attention::key_rows(call.inputs[1]), call.inputs[3]);
  run_gradient(call,
               {{attention::packed_shape(call), attention::part_rows(qkv, 0), attention::part_rows(qkv, 1),
                 attention::part_rows(qkv, 2), out, reals(call.inputs[2])},
                reals(call.inputs[3]),
                reinterpret_cast<float*>(call.scratch.data())},
               {attention::part_rows(dqkv, 0), attention::part_rows(dqkv, 1), attention::part_rows(dqkv, 2)});
}

/// q, k, v, out, lse, dout (, mask) -> dq, dk, dv
void separate_attention_gradient(const KernelCall& call) {
  const attention::Shape shape = attention::separate_shape(call, 6);
  const HeadRows out = rows_of_both(attention::query_rows(call.inputs[3], shape), call.inputs[5]);
  run_gradient(call,
               {{shape, attention::query_rows(call.inputs[0], shape), attention::key_rows(call.inputs[1]),
                 attention::key_rows(call.inputs[2]), out, reals(call.inputs[4])},
                reals(call.inputs[5]),
                reinterpret_cast<float*>(call.scratch.data())},
               {attention::query_rows(call.outputs[0], shape), attention::key_rows(call.outputs[1]),
                attention::key_rows(call.outputs[2])});
}

/// Scratch bytes for D_i: one number for each element of log-sum-exp.
std::size_t packed_gradient_scratch(const graph::OpShape& shape, int) {
  return static_cast<std::size_t>(graph::element_count(shape.inputs[2])) * sizeof(float);
}
std::size_t separate_gradient_scratch(const graph::OpShape& shape, int) {
  return static_cast<std::size_t>(graph::element_count(shape.inputs[4])) * sizeof(float);
}

const AddKernels attention_gradients(
    {{"attention_gradient", {.run = packed_attention_gradient, .scratch_bytes = packed_gradient_scratch}},
     {"scaled_dot_product_attention_gradient",
      {.run = separate_attention_gradient, .scratch_bytes = separate_gradient_scratch}}});

}  // namespace
}  // namespace shardrun::device::cuda
