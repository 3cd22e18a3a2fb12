#include <cmath>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/values.h"

// Updates of parameters. All arithmetic is float32; states may be their results' memory.

namespace shardrun::device::cuda {
namespace {

[[nodiscard]] SHARDRUN_ON_DEVICE inline bool is_finite(float number) {
  constexpr std::uint32_t exponent = 0x7F800000U;
  std::uint32_t bits;
  __builtin_memcpy(&bits, &number, sizeof(bits));
  return (bits & exponent) != exponent;
}

/// Whether the update is held back; see Guard.
[[nodiscard]] SHARDRUN_ON_DEVICE inline bool is_held(const Guard& guard) {
  return guard.held != nullptr && *guard.held != 0;
}

/// norm² -> the factor that reduces the norm to `limit` (0: no limit), and the norm. Pascanu, Mikolov and Bengio 2013,
/// arXiv:1211.5063, algorithm 1. Closes the guard if the norm or the loss is not finite: all updates follow it.
struct ClipScale {
  Reals squares;
  Reals factor;
  Reals norm;
  float limit;
  Guard guard;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t) const {
    const float found = FloatMath::sqrt(squares.get(0));
    factor.set(0, limit > 0 && found > limit ? limit / (found + 1e-6F) : 1.0F);
    norm.set(0, found);
    if (guard.held != nullptr && !(is_finite(found) && is_finite(*guard.loss))) {
      *guard.held = 1;
    }
  }
};

void clip_scale(const KernelCall& call) {
  for_each(call, 1,
           ClipScale{reals(call.inputs[0]), reals(call.outputs[0]), reals(call.outputs[1]),
                     static_cast<float>(call.attributes.real("limit")), call.scalars.guard});
}

/// Calls function.update<pack>(i) for packs of a tensor's elements, each on a thread.
template <typename Function>
struct UpdatePacks {
  std::int64_t size;
  bool aligned;
  Function function;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t number) const {
    const std::int64_t i = number * pack_size;
    if (aligned && i + pack_size <= size) {
      function.template update<pack_size>(i);
      return;
    }
    for (std::int64_t j = i; j < size && j < i + pack_size; ++j) {
      function.template update<1>(j);
    }
  }
};

/// `states`: how many operands, from the first, are tensors of the parameter's shape.
template <typename Function>
void update(const KernelCall& call, std::size_t states, const Function& function) {
  bool aligned = true;
  for (std::size_t i = 0; i < states; ++i) {
    aligned = aligned && is_aligned(call.inputs[i]);
  }
  for (const TensorView& result : call.outputs) {
    aligned = aligned && is_aligned(result);
  }
  const std::int64_t size = call.inputs[0].elements();
  for_each(call, (size + pack_size - 1) / pack_size, UpdatePacks<Function>{size, aligned, function});
}

/// The factor of gradients: an operand, or 1.
struct GradientScale {
  Reals scale;
  bool exists;
  [[nodiscard]] SHARDRUN_ON_DEVICE float get() const { return exists ? scale.get(0) : 1.0F; }
};
GradientScale scale_of(const KernelCall& call, std::size_t operand) {
  const bool exists = operand < call.inputs.size();
  return {exists ? reals(call.inputs[operand]) : Reals{}, exists};
}

/// Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2, with the decay multiplied by the learning rate.
struct AdamW {
  Reals parameter;
  Reals first;
  Reals second;
  Reals gradient;
  GradientScale scale;
  Reals new_parameter;
  Reals new_first;
  Reals new_second;
  float beta1;
  float beta2;
  float fresh1;      ///< 1 - beta1
  float fresh2;      ///< 1 - beta2
  float shrink;      ///< learning rate times decay
  float stride;      ///< learning rate / (1 - beta1^t)
  float correction;  ///< 1 / sqrt(1 - beta2^t)
  float epsilon;
  Guard guard;

  template <int pack>
  SHARDRUN_ON_DEVICE void update(std::int64_t i) const {
    const float factor = scale.get();
    Pack<pack> p = parameter.get_pack<pack>(i);
    Pack<pack> m = first.get_pack<pack>(i);
    Pack<pack> v = second.get_pack<pack>(i);
    const Pack<pack> gradients = gradient.get_pack<pack>(i);
    const bool held = is_held(guard);
    for (int k = 0; k < pack && !held; ++k) {
      const float g = gradients[k] * factor;
      m[k] = m[k] * beta1 + g * fresh1;
      v[k] = v[k] * beta2 + g * g * fresh2;
      p[k] -= stride * m[k] / (FloatMath::sqrt(v[k]) * correction + epsilon) + p[k] * shrink;
    }
    new_parameter.set_pack(i, p);
    new_first.set_pack(i, m);
    new_second.set_pack(i, v);
  }
};

/// parameter, first, second, gradient[, scale []] -> parameter, first, second
void adamw(const KernelCall& call) {
  const double beta1 = call.attributes.real("beta1");
  const double beta2 = call.attributes.real("beta2");
  const double rate = call.scalars.learning_rate;
  const auto t = static_cast<double>(call.scalars.step + 1);
  update(call, 4,
         AdamW{.parameter = reals(call.inputs[0]),
               .first = reals(call.inputs[1]),
               .second = reals(call.inputs[2]),
               .gradient = reals(call.inputs[3]),
               .scale = scale_of(call, 4),
               .new_parameter = reals(call.outputs[0]),
               .new_first = reals(call.outputs[1]),
               .new_second = reals(call.outputs[2]),
               .beta1 = static_cast<float>(beta1),
               .beta2 = static_cast<float>(beta2),
               .fresh1 = static_cast<float>(1 - beta1),
               .fresh2 = static_cast<float>(1 - beta2),
               .shrink = static_cast<float>(rate * call.attributes.real("decay")),
               .stride = static_cast<float>(rate / (1 - std::pow(beta1, t))),
               .correction = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, t))),
               .epsilon = static_cast<float>(call.attributes.real("epsilon")),
               .guard = call.scalars.guard});
}

/// v = momentum v + g, p = p - rate v, where g has decay p added (Sutskever et al. 2013, "On the importance of
/// initialization and momentum", section 2, with the rate outside the velocity).
struct Sgd {
  Reals parameter;
  Reals velocity;
  Reals gradient;
  GradientScale scale;
  Reals new_parameter;
  Reals new_velocity;
  bool has_velocity;
  float momentum;
  float decay;
  float rate;
  Guard guard;

  template <int pack>
  SHARDRUN_ON_DEVICE void update(std::int64_t i) const {
    const float factor = scale.get();
    const bool held = is_held(guard);
    Pack<pack> p = parameter.get_pack<pack>(i);
    Pack<pack> v = gradient.get_pack<pack>(i);
    for (int k = 0; k < pack; ++k) {
      v[k] = v[k] * factor + p[k] * decay;
    }
    if (has_velocity) {
      const Pack<pack> old = velocity.get_pack<pack>(i);
      for (int k = 0; k < pack; ++k) {
        v[k] = held ? old[k] : v[k] + old[k] * momentum;
      }
      new_velocity.set_pack(i, v);
    }
    for (int k = 0; k < pack && !held; ++k) {
      p[k] -= v[k] * rate;
    }
    new_parameter.set_pack(i, p);
  }
};

/// parameter, [velocity,] gradient[, scale []] -> parameter [, velocity]
void sgd(const KernelCall& call) {
  const auto momentum = static_cast<float>(call.attributes.real("momentum"));
  const bool has_velocity = momentum > 0;
  const std::size_t gradient = has_velocity ? 2 : 1;
  update(call, gradient + 1,
         Sgd{.parameter = reals(call.inputs[0]),
             .velocity = has_velocity ? reals(call.inputs[1]) : Reals{},
             .gradient = reals(call.inputs[gradient]),
             .scale = scale_of(call, gradient + 1),
             .new_parameter = reals(call.outputs[0]),
             .new_velocity = has_velocity ? reals(call.outputs[1]) : Reals{},
             .has_velocity = has_velocity,
             .momentum = momentum,
             .decay = static_cast<float>(call.attributes.real("decay")),
             .rate = static_cast<float>(call.scalars.learning_rate),
             .guard = call.scalars.guard});
}

const AddKernels optimizers({{"clip_scale", {.run = clip_scale}}, {"adamw", {.run = adamw}}, {"sgd", {.run = sgd}}});

}  // namespace
}  // namespace shardrun::device::cuda
