#include "core/device/cpu/reduce.h"

// layer_norm (Ba et al. 2016, arXiv:1607.06450) and rms_norm (Zhang and Sennrich 2019, arXiv:1910.07467) over the last
// dimension. The same functions compute the gradients of both. Without `centred`, which is rms_norm, the mean is zero.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// x: [L, E]   gain (, bias): [E]   y: [L, E]   mean, rstd: [L]
template <typename Pointer>
void layer_norm(const KernelCall& call) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto gain = reals<Pointer>(call.inputs[1]);
  const bool with_bias = call.inputs.size() > 2;
  const auto bias = reals<Pointer>(call.inputs[with_bias ? 2 : 1]);
  const auto y = reals<Pointer>(call.outputs[0]);
  const auto means = reals<Pointer>(call.outputs[1]);
  const auto deviations = reals<Pointer>(call.outputs[2]);
  const std::int64_t width = columns(call.inputs[0]);
  const auto epsilon = static_cast<float>(call.attributes.real("epsilon"));
  call.threads.split(rows(call.inputs[0]), row_grain(width), [=](std::int64_t begin, std::int64_t end) {
    const auto scale = 1.0F / static_cast<float>(width);
    for (std::int64_t r = begin; r < end; ++r) {
      const auto from = x + r * width;
      const auto to = y + r * width;
      const float mean = sum_of(width, [=](auto at) { return load(from, at); }) * scale;
      const FloatPair sums = sums_of(width, [=](auto at) {
        const vec centred = load(from, at) - mean;
        return VecPair{centred, centred * centred};
      });
      // `rest` corrects the rounding error of the mean, which would show in rows far from zero.
      const float rest = sums.first * scale;
      const float rstd = 1.0F / __builtin_sqrtf(sums.second * scale - rest * rest + epsilon);
      put(means, r, mean + rest);
      put(deviations, r, rstd);
      if (with_bias) {
        vectors(0, width, [=](auto at) {
          store(to, at, (load(from, at) - mean - rest) * rstd * load(gain, at) + load(bias, at));
        });
      } else {
        vectors(0, width, [=](auto at) { store(to, at, (load(from, at) - mean - rest) * rstd * load(gain, at)); });
      }
    }
  });
}

/// x: [L, E]   gain: [E]   y: [L, E]   rstd: [L]
template <typename Pointer>
void rms_norm(const KernelCall& call) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto gain = reals<Pointer>(call.inputs[1]);
  const auto y = reals<Pointer>(call.outputs[0]);
  const auto deviations = reals<Pointer>(call.outputs[1]);
  const std::int64_t width = columns(call.inputs[0]);
  const auto epsilon = static_cast<float>(call.attributes.real("epsilon"));
  call.threads.split(rows(call.inputs[0]), row_grain(width), [=](std::int64_t begin, std::int64_t end) {
    const auto scale = 1.0F / static_cast<float>(width);
    for (std::int64_t r = begin; r < end; ++r) {
      const auto from = x + r * width;
      const auto to = y + r * width;
      const float squares = sum_of(width, [=](auto at) {
        const vec v = load(from, at);
        return v * v;
      });
      const float rstd = 1.0F / __builtin_sqrtf(squares * scale + epsilon);
      put(deviations, r, rstd);
      vectors(0, width, [=](auto at) { store(to, at, load(from, at) * rstd * load(gain, at)); });
    }
  });
}

/// With n = (x - mean) rstd and g = dy gain:  dx = rstd (g - mean(g) - n mean(g n)), without mean(g) if not `centred`.
/// dy, x: [L, E]   gain: [E]   mean (if `centred`), rstd: [L]   dx: [L, E]
template <typename Pointer, bool centred>
void gradient_input(const KernelCall& call) {
  const auto dy = reals<Pointer>(call.inputs[0]);
  const auto x = reals<Pointer>(call.inputs[1]);
  const auto gain = reals<Pointer>(call.inputs[2]);
  const auto means = reals<Pointer>(call.inputs[3]);
  const auto deviations = reals<Pointer>(call.inputs[centred ? 4 : 3]);
  const auto dx = reals<Pointer>(call.outputs[0]);
  const std::int64_t width = columns(call.inputs[0]);
  call.threads.split(rows(call.inputs[0]), row_grain(width), [=](std::int64_t begin, std::int64_t end) {
    const auto scale = 1.0F / static_cast<float>(width);
    for (std::int64_t r = begin; r < end; ++r) {
      const auto dy_row = dy + r * width;
      const auto x_row = x + r * width;
      const auto dx_row = dx + r * width;
      const float mean = centred ? get(means, r) : 0.0F;
      const float rstd = get(deviations, r);
      const FloatPair sums = sums_of(width, [=](auto at) {
        const vec g = load(dy_row, at) * load(gain, at);
        return VecPair{g, g * (load(x_row, at) - mean)};
      });
      const float mean_g = centred ? sums.first * scale : 0.0F;
      const float mean_gn = sums.second * scale * rstd;
      vectors(0, width, [=](auto at) {
        const vec n = (load(x_row, at) - mean) * rstd;
        store(dx_row, at, (load(dy_row, at) * load(gain, at) - mean_g - n * mean_gn) * rstd);
      });
    }
  });
}

/// dy, x: [L, E]   mean (if `centred`), rstd: [L]   dgain: [E] (+)= Σ dy n
template <typename Pointer, bool centred>
void gradient_gain(const KernelCall& call) {
  const auto dy = reals<Pointer>(call.inputs[0]);
  const auto x = reals<Pointer>(call.inputs[1]);
  const auto means = reals<Pointer>(call.inputs[2]);
  const auto deviations = reals<Pointer>(call.inputs[centred ? 3 : 2]);
  const std::int64_t width = columns(call.inputs[0]);
  column_sums<Pointer>(call, rows(call.inputs[0]), width, [=](std::int64_t r, auto at) {
    const float mean = centred ? get(means, r) : 0.0F;
    return load(dy + r * width, at) * ((load(x + r * width, at) - mean) * get(deviations, r));
  });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(
    layer_norm, {"layer_norm", {.run = by_type<layer_norm<float*>, layer_norm<Reals>>}},
    {"layer_norm_gradient_input", {.run = by_type<gradient_input<float*, true>, gradient_input<Reals, true>>}},
    {"layer_norm_gradient_gain", {.run = by_type<gradient_gain<float*, true>, gradient_gain<Reals, true>>}},
    {"rms_norm", {.run = by_type<rms_norm<float*>, rms_norm<Reals>>}},
    {"rms_norm_gradient_input", {.run = by_type<gradient_input<float*, false>, gradient_input<Reals, false>>}},
    {"rms_norm_gradient_gain", {.run = by_type<gradient_gain<float*, false>, gradient_gain<Reals, false>>}})
