#include "core/device/cpu/elementwise.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// norm² -> the factor that reduces the norm to `limit` (0: no limit), and the norm
void clip_scale(const KernelCall& call) {
  const float norm = __builtin_sqrtf(get(reals<Reals>(call.inputs[0]), 0));
  const auto limit = static_cast<float>(call.attributes.real("limit"));
  put(reals<Reals>(call.outputs[0]), 0, limit > 0 && norm > limit ? limit / (norm + 1e-6F) : 1.0F);
  put(reals<Reals>(call.outputs[1]), 0, norm);
}

/// parameter, first, second, gradient[, scale []] -> parameter, first, second.
/// Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, with the decay multiplied by the learning rate.
template <typename Pointer>
void adamw(const KernelCall& call) {
  const double beta1 = call.attributes.real("beta1");
  const double beta2 = call.attributes.real("beta2");
  const double rate = call.scalars.learning_rate;
  const auto t = static_cast<double>(call.scalars.step + 1);
  const auto b1 = static_cast<float>(beta1);
  const auto b2 = static_cast<float>(beta2);
  const auto fresh1 = static_cast<float>(1 - beta1);
  const auto fresh2 = static_cast<float>(1 - beta2);
  // Not 1 − rate · decay: while the rate is small, float has no number between that and 1.
  const auto shrink = static_cast<float>(rate * call.attributes.real("decay"));
  const auto stride = static_cast<float>(rate / (1 - __builtin_pow(beta1, t)));
  const auto correction = static_cast<float>(1 / __builtin_sqrt(1 - __builtin_pow(beta2, t)));
  const auto epsilon = static_cast<float>(call.attributes.real("epsilon"));
  const float scale = call.inputs.size() > 4 ? get(reals<Pointer>(call.inputs[4]), 0) : 1.0F;
  const auto parameter = reals<Pointer>(call.inputs[0]);
  const auto first = reals<Pointer>(call.inputs[1]);
  const auto second = reals<Pointer>(call.inputs[2]);
  const auto gradient = reals<Pointer>(call.inputs[3]);
  const auto new_parameter = reals<Pointer>(call.outputs[0]);
  const auto new_first = reals<Pointer>(call.outputs[1]);
  const auto new_second = reals<Pointer>(call.outputs[2]);
  for_each_vector(call, call.inputs[0].elements(), [=](auto at) {
    const vec g = load(gradient, at) * scale;
    const vec m = load(first, at) * b1 + g * fresh1;
    const vec v = load(second, at) * b2 + g * g * fresh2;
    const vec p = load(parameter, at);
    const vec change = stride * m / (square_root(v) * correction + epsilon) + p * shrink;
    store(new_first, at, m);
    store(new_second, at, v);
    store(new_parameter, at, p - change);
  });
}

/// parameter, [velocity,] gradient[, scale []] -> parameter [, velocity]: v = momentum v + g, p = p - rate v, where g
/// has decay * p added.
template <typename Pointer>
void sgd(const KernelCall& call) {
  const auto momentum = static_cast<float>(call.attributes.real("momentum"));
  const auto decay = static_cast<float>(call.attributes.real("decay"));
  const auto rate = static_cast<float>(call.scalars.learning_rate);
  const bool with_velocity = momentum > 0;
  const std::size_t g = with_velocity ? 2 : 1;
  const auto gradient = reals<Pointer>(call.inputs[g]);
  const float scale = call.inputs.size() > g + 1 ? get(reals<Pointer>(call.inputs[g + 1]), 0) : 1.0F;
  const auto parameter = reals<Pointer>(call.inputs[0]);
  const auto velocity = reals<Pointer>(call.inputs[with_velocity ? 1 : 0]);
  const auto new_parameter = reals<Pointer>(call.outputs[0]);
  const auto new_velocity = reals<Pointer>(call.outputs[with_velocity ? 1 : 0]);
  for_each_vector(call, call.inputs[0].elements(), [=](auto at) {
    const vec p = load(parameter, at);
    vec v = load(gradient, at) * scale + p * decay;
    if (with_velocity) {
      v += load(velocity, at) * momentum;
      store(new_velocity, at, v);
    }
    store(new_parameter, at, p - v * rate);
  });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(optimizer, {"clip_scale", {.run = clip_scale}},
                 {"adamw", {.run = by_type<adamw<float*>, adamw<Reals>>}},
                 {"sgd", {.run = by_type<sgd<float*>, sgd<Reals>>}})
