#include <algorithm>
#include <cmath>
#include <optional>
#include <type_traits>

#include "core/device/cuda/fusions.h"
#include "core/device/cuda/launch.h"
#include "core/device/cuda/values.h"

// Updates of parameters. All arithmetic is float32. Results may overwrite the states that they replace.

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
/// arXiv:1211.5063, algorithm 1. Holds back the updates, which all come later, if the norm or the loss is not finite.
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

/// The elements of a float32 tensor. A pack of four is one access, so the threads of a warp write whole sectors of
/// memory. With packs of Reals, each access of a warp would write half of each 32-byte sector.
struct Floats {
  static constexpr int pack = 4;

  float* data = nullptr;

  template <int count>
  [[nodiscard]] SHARDRUN_ON_DEVICE Pack<count> get_pack(std::int64_t i) const {
    const auto from = *reinterpret_cast<const Words<count>*>(data + i);
    Pack<count> pack;
    SHARDRUN_UNROLLED for (int k = 0; k < count; ++k) { pack[k] = from.values[k]; }
    return pack;
  }
  template <int count>
  SHARDRUN_ON_DEVICE void set_pack(std::int64_t i, const Pack<count>& pack) const {
    Words<count> to;
    SHARDRUN_UNROLLED for (int k = 0; k < count; ++k) { to.values[k] = pack[k]; }
    *reinterpret_cast<Words<count>*>(data + i) = to;
  }

 private:
  template <int count>
  struct alignas(4 * count) Words {
    float values[count];
  };
};

template <typename Values>
Values values_of(const TensorView& tensor) {
  if constexpr (std::is_same_v<Values, Floats>) {
    return {static_cast<float*>(tensor.data)};
  } else {
    return reals(tensor);
  }
}

/// Calls function.update<count>(i) for packs of a tensor's elements, one pack per thread.
template <int pack, typename Function>
struct UpdatePacks {
  std::int64_t size;
  bool aligned;
  Function function;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t number) const {
    const std::int64_t i = number * pack;
    if (aligned && i + pack <= size) {
      function.template update<pack>(i);
      return;
    }
    for (std::int64_t j = i; j < size && j < i + pack; ++j) {
      function.template update<1>(j);
    }
  }
};

/// `states`: how many of the first operands have the parameter's shape.
template <int pack, typename Function>
void update(const KernelCall& call, std::size_t states, const Function& function) {
  bool aligned = true;
  for (std::size_t i = 0; i < states; ++i) {
    aligned = aligned && is_aligned(call.inputs[i]);
  }
  for (const TensorView& result : call.outputs) {
    aligned = aligned && is_aligned(result);
  }
  const std::int64_t size = call.inputs[0].elements();
  for_each(call, (size + pack - 1) / pack, UpdatePacks<pack, Function>{size, aligned, function});
}

/// The factor by which gradients are multiplied: an operand, or 1.
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
template <typename Values>
struct AdamW {
  Values parameter;
  Values first;
  Values second;
  Values gradient;
  GradientScale scale;
  Values new_parameter;
  Values new_first;
  Values new_second;
  Reals copy;  ///< the parameter's bfloat16 copy
  bool has_copy;
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
    Pack<pack> p = parameter.template get_pack<pack>(i);
    Pack<pack> m = first.template get_pack<pack>(i);
    Pack<pack> v = second.template get_pack<pack>(i);
    const Pack<pack> gradients = gradient.template get_pack<pack>(i);
    const bool held = is_held(guard);
    // No branch on `held`: the compiler would move loads of the gradient behind it,
    // where they would wait for the guard.
    for (int k = 0; k < pack; ++k) {
      const float g = gradients[k] * factor;
      const float new_m = m[k] * beta1 + g * fresh1;
      const float new_v = v[k] * beta2 + g * g * fresh2;
      const float step = stride * new_m / (FloatMath::sqrt(new_v) * correction + epsilon) + p[k] * shrink;
      m[k] = held ? m[k] : new_m;
      v[k] = held ? v[k] : new_v;
      p[k] = held ? p[k] : p[k] - step;
    }
    new_parameter.set_pack(i, p);
    new_first.set_pack(i, m);
    new_second.set_pack(i, v);
    if (has_copy) {
      copy.set_pack(i, p);
    }
  }
};

template <int pack, typename Values>
void adamw_of(const KernelCall& call) {
  const double beta1 = call.attributes.real("beta1");
  const double beta2 = call.attributes.real("beta2");
  const double rate = call.scalars.learning_rate;
  const auto t = static_cast<double>(call.scalars.step + 1);
  const bool has_copy = call.outputs.size() == 4;
  update<pack>(call, 4,
               AdamW<Values>{.parameter = values_of<Values>(call.inputs[0]),
                             .first = values_of<Values>(call.inputs[1]),
                             .second = values_of<Values>(call.inputs[2]),
                             .gradient = values_of<Values>(call.inputs[3]),
                             .scale = scale_of(call, 4),
                             .new_parameter = values_of<Values>(call.outputs[0]),
                             .new_first = values_of<Values>(call.outputs[1]),
                             .new_second = values_of<Values>(call.outputs[2]),
                             .copy = has_copy ? reals(call.outputs[3]) : Reals{},
                             .has_copy = has_copy,
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

/// parameter, first, second, gradient[, scale []] -> parameter, first, second[, copy]
void adamw(const KernelCall& call) {
  const auto is_float = [](const TensorView& tensor) { return tensor.dtype == graph::DType::f32; };
  const bool all_floats =
      std::ranges::all_of(call.inputs.first(4), is_float) && std::ranges::all_of(call.outputs.first(3), is_float);
  all_floats ? adamw_of<Floats::pack, Floats>(call) : adamw_of<pack_size, Reals>(call);
}

/// v = momentum v + g and p = p - rate v, where g = scale * gradient + decay p. Sutskever et al. 2013, "On the
/// importance of initialization and momentum", section 2, with the rate outside the velocity.
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
  update<pack_size>(call, gradient + 1,
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

/// Fuses AdamW with the cast that makes the parameter's bfloat16 copy, if that copy overlaps no operand of the update.
std::optional<FusedArguments> adamw_and_cast(const PreparedKernel& adamw, const PreparedKernel& cast) {
  const TensorView& copy = cast.outputs.front();
  const auto is_apart = [&](const TensorView& input) { return !overlap(copy.data, copy.bytes(), input); };
  if (!is_same(cast.inputs.front(), adamw.outputs.front()) || copy.dtype != graph::DType::bf16 ||
      !std::ranges::all_of(adamw.inputs, is_apart)) {
    return std::nullopt;
  }
  FusedArguments made = {adamw.inputs, adamw.outputs};
  made.outputs.push_back(copy);
  return made;
}

const AddFusedKernels with_copies({{"adamw", "cast", adamw, adamw_and_cast}});

const AddKernels optimizers({{"clip_scale", {.run = clip_scale}}, {"adamw", {.run = adamw}}, {"sgd", {.run = sgd}}});

}  // namespace
}  // namespace shardrun::device::cuda
