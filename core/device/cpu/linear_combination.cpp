#include "core/device/cpu/elementwise.h"

// This file is compiled without contraction to fused multiply-adds. Every product and every sum is rounded, so the
// result has the bits of a plain C loop in float32.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// y = (c0 x0 + c1 x1) + …, with the coefficients rounded to float32
template <typename Pointer>
void linear_combination(const KernelCall& call) {
  const TensorView* inputs = call.inputs.data();
  const std::size_t terms = call.inputs.size();
  const double* exact = call.attributes.reals("coefficients").data();
  auto* coefficients = reinterpret_cast<float*>(call.scratch.data());
  for (std::size_t i = 0; i < terms; ++i) {
    coefficients[i] = static_cast<float>(exact[i]);
  }
  const auto y = reals<Pointer>(call.outputs[0]);
  for_each_vector(call, call.outputs[0].elements(), [=](auto at) {
    vec total = coefficients[0] * load(reals<Pointer>(inputs[0]), at);
    for (std::size_t i = 1; i < terms; ++i) {
      total = total + coefficients[i] * load(reals<Pointer>(inputs[i]), at);
    }
    store(y, at, total);
  });
}

std::size_t scratch_bytes(const graph::OpShape& shape, int) { return shape.inputs.size() * sizeof(float); }

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(linear_combination, {"linear_combination",
                                      {by_type<linear_combination<float*>, linear_combination<Reals>>, scratch_bytes}})
