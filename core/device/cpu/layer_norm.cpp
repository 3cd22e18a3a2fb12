#include "core/device/cpu/reduce.h"

// Ba et al. 2016, arXiv:1607.06450, over the last dimension.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// x: [L, E]   gain (, bias): [E]   y: [L, E]   mean, rstd: [L]
void layer_norm(const KernelCall& call) {
  const float* x = floats(call.inputs[0]);
  const float* gain = floats(call.inputs[1]);
  const float* bias = call.inputs.size() > 2 ? floats(call.inputs[2]) : nullptr;
  float* y = floats(call.outputs[0]);
  float* means = floats(call.outputs[1]);
  float* deviations = floats(call.outputs[2]);
  const std::int64_t width = columns(call.inputs[0]);
  const auto epsilon = static_cast<float>(call.attributes.real("epsilon"));
  call.threads.split(rows(call.inputs[0]), row_grain(width), [=](std::int64_t begin, std::int64_t end) {
    const auto scale = 1.0F / static_cast<float>(width);
    for (std::int64_t r = begin; r < end; ++r) {
      const float* from = x + r * width;
      float* to = y + r * width;
      const float mean = sum_of(width, [=](auto at) { return load(from, at); }) * scale;
      const FloatPair sums = sums_of(width, [=](auto at) {
        const vec centred = load(from, at) - mean;
        return VecPair{centred, centred * centred};
      });
      // The rounding error of the mean. It would show in rows far from zero.
      const float rest = sums.first * scale;
      const float rstd = 1.0F / __builtin_sqrtf(sums.second * scale - rest * rest + epsilon);
      means[r] = mean + rest;
      deviations[r] = rstd;
      if (bias != nullptr) {
        vectors(0, width, [=](auto at) {
          store(to, at, (load(from, at) - mean - rest) * rstd * load(gain, at) + load(bias, at));
        });
      } else {
        vectors(0, width, [=](auto at) { store(to, at, (load(from, at) - mean - rest) * rstd * load(gain, at)); });
      }
    }
  });
}

/// With n = (x - mean) rstd and g = dy gain:  dx = rstd (g - mean(g) - n mean(g n))
/// dy, x: [L, E]   gain: [E]   mean, rstd: [L]   dx: [L, E]
void gradient_input(const KernelCall& call) {
  const float* dy = floats(call.inputs[0]);
  const float* x = floats(call.inputs[1]);
  const float* gain = floats(call.inputs[2]);
  const float* means = floats(call.inputs[3]);
  const float* deviations = floats(call.inputs[4]);
  float* dx = floats(call.outputs[0]);
  const std::int64_t width = columns(call.inputs[0]);
  call.threads.split(rows(call.inputs[0]), row_grain(width), [=](std::int64_t begin, std::int64_t end) {
    const auto scale = 1.0F / static_cast<float>(width);
    for (std::int64_t r = begin; r < end; ++r) {
      const float* dy_row = dy + r * width;
      const float* x_row = x + r * width;
      float* dx_row = dx + r * width;
      const float mean = means[r];
      const float rstd = deviations[r];
      const FloatPair sums = sums_of(width, [=](auto at) {
        const vec g = load(dy_row, at) * load(gain, at);
        return VecPair{g, g * (load(x_row, at) - mean)};
      });
      const float mean_g = sums.first * scale;
      const float mean_gn = sums.second * scale * rstd;
      vectors(0, width, [=](auto at) {
        const vec n = (load(x_row, at) - mean) * rstd;
        store(dx_row, at, (load(dy_row, at) * load(gain, at) - mean_g - n * mean_gn) * rstd);
      });
    }
  });
}

/// dy, x: [L, E]   mean, rstd: [L]   dgain: [E] (+)= Σ dy n
void gradient_gain(const KernelCall& call) {
  const float* dy = floats(call.inputs[0]);
  const float* x = floats(call.inputs[1]);
  const float* means = floats(call.inputs[2]);
  const float* deviations = floats(call.inputs[3]);
  const std::int64_t width = columns(call.inputs[0]);
  column_sums(call, rows(call.inputs[0]), width, [=](std::int64_t r, auto at) {
    return load(dy + r * width, at) * ((load(x + r * width, at) - means[r]) * deviations[r]);
  });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(layer_norm, {"layer_norm", {.run = layer_norm}},
                 {"layer_norm_gradient_input", {.run = gradient_input}},
                 {"layer_norm_gradient_gain", {.run = gradient_gain}})
