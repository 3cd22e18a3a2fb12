#include "core/device/reference/product.h"
#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// y[l, n] = sum over k of x[l, k] w[k, n], or w[n, k] when transposed. `contract` trailing dimensions of x are k.
/// x: [L, K...]   w: [K..., N...] or [N..., K...]   y: [L, N...]
void matmul(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& w = call.inputs[1];
  const auto contract = static_cast<std::uint32_t>(call.attributes.integer("contract"));
  const bool transpose = call.attributes.integer("transpose") != 0;
  const std::int64_t ls = extent(x, 0, x.rank - contract);
  const std::int64_t ks = extent(x, x.rank - contract, x.rank);
  const std::int64_t ns = transpose ? extent(w, 0, w.rank - contract) : extent(w, contract, w.rank);
  const Operand weights = transpose ? Operand{reals(w), ns, ks, true} : Operand{reals(w), ks, ns};
  multiply(call.threads, {reals(x), ls, ks}, weights, reals(call.outputs[0]), call.accumulate);
}

/// dw[k, n] = sum over l of x[l, k] dy[l, n], laid out as [n, k] when transposed.
/// x: [L, K...]   dy: [L, N...]   dw: [K..., N...] or [N..., K...]
void matmul_gradient_weights(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& dy = call.inputs[1];
  const auto contract = static_cast<std::uint32_t>(call.attributes.integer("contract"));
  const bool transpose = call.attributes.integer("transpose") != 0;
  const std::uint32_t leading = x.rank - contract;
  const std::int64_t ls = extent(x, 0, leading);
  const std::int64_t ks = extent(x, leading, x.rank);
  const std::int64_t ns = extent(dy, leading, dy.rank);
  double* dw = reals(call.outputs[0]);
  if (transpose) {
    multiply(call.threads, {reals(dy), ls, ns, true}, {reals(x), ls, ks}, dw, call.accumulate);
  } else {
    multiply(call.threads, {reals(x), ls, ks, true}, {reals(dy), ls, ns}, dw, call.accumulate);
  }
}

const RegisterKernel register_matmul("reference", "matmul", {.run = matmul});
const RegisterKernel register_matmul_gradient_weights("reference", "matmul_gradient_weights",
                                                      {.run = matmul_gradient_weights});

}  // namespace
}  // namespace shardrun::device::reference
