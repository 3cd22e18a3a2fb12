#include "core/device/cpu/elementwise.h"
#include "core/device/cpu/vec_math.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

bool uses_tanh(const KernelCall& call) { return call.attributes.text("form")[0] == 't'; }

/// 0.5 x (1 + tanh(u)) = x sigmoid(2u) with u = sqrt(2/π) (x + 0.044715 x³). Hendrycks and Gimpel, arXiv:1606.08415.
inline constexpr float two_u = 2 * 0.797884561F;
inline constexpr float cubic = 0.044715F;

void gelu(const KernelCall& call) {
  if (uses_tanh(call)) {
    map<1>(call, [](vec x) { return x / (1.0F + exp(-two_u * x * (cubic * (x * x) + 1.0F))); });
  } else {
    map<1>(call, [](vec x) { return x * normal(x).cumulative; });
  }
}

void gelu_gradient(const KernelCall& call) {
  if (uses_tanh(call)) {
    map<2>(call, [](vec dy, vec x) {
      const Sigmoid s = sigmoid(two_u * x * (cubic * (x * x) + 1.0F));
      const vec slope = two_u * (3 * cubic * (x * x) + 1.0F);
      return dy * (s.value + x * slope * s.value * s.complement);
    });
  } else {
    map<2>(call, [](vec dy, vec x) {
      const Normal at_x = normal(x);
      return dy * (at_x.cumulative + x * at_x.density);
    });
  }
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(activation, {"gelu", {.run = gelu}}, {"gelu_gradient", {.run = gelu_gradient}})
