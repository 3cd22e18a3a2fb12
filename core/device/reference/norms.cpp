#include <cmath>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// y = (x - mean) rstd gain + bias, rstd = 1 / sqrt(variance + epsilon), over the last dimension.
/// Ba, Kiros and Hinton 2016, arXiv:1607.06450, equations 3 and 4.
/// x: [L, E]   gain, bias: [E]   y: [L, E]   mean, rstd: [L]
void layer_norm(const KernelCall& call) {
  const bool has_bias = call.inputs.size() == 3;
  const std::int64_t width = last_extent(call.inputs[0]);
  const double* gain = reals(call.inputs[1]);
  const double* bias = has_bias ? reals(call.inputs[2]) : nullptr;
  for_each(call, rows(call.inputs[0]), width, [&](std::int64_t l) {
    const double* x = reals(call.inputs[0]) + l * width;
    double* y = reals(call.outputs[0]) + l * width;
    double mean = 0;
    for (std::int64_t e = 0; e < width; ++e) {
      mean += x[e] / static_cast<double>(width);
    }
    double variance = 0;
    for (std::int64_t e = 0; e < width; ++e) {
      variance += (x[e] - mean) * (x[e] - mean) / static_cast<double>(width);
    }
    const double rstd = 1 / std::sqrt(variance + call.attributes.real("epsilon"));
    for (std::int64_t e = 0; e < width; ++e) {
      y[e] = (x[e] - mean) * rstd * gain[e] + (has_bias ? bias[e] : 0);
    }
    reals(call.outputs[1])[l] = mean;
    reals(call.outputs[2])[l] = rstd;
  });
}

/// With n = (x - mean) rstd and g = dy gain:  dx = rstd (g - average(g) - n average(g n)).
/// dy, x: [L, E]   gain: [E]   mean, rstd: [L]   dx: [L, E]
void layer_norm_gradient_input(const KernelCall& call) {
  const std::int64_t width = last_extent(call.inputs[1]);
  const double* gain = reals(call.inputs[2]);
  for_each(call, rows(call.inputs[1]), width, [&](std::int64_t l) {
    const double* dy = reals(call.inputs[0]) + l * width;
    const double* x = reals(call.inputs[1]) + l * width;
    const double mean = reals(call.inputs[3])[l];
    const double rstd = reals(call.inputs[4])[l];
    double* dx = reals(call.outputs[0]) + l * width;
    double average_g = 0;
    double average_gn = 0;
    for (std::int64_t e = 0; e < width; ++e) {
      const double g = dy[e] * gain[e];
      average_g += g / static_cast<double>(width);
      average_gn += g * (x[e] - mean) * rstd / static_cast<double>(width);
    }
    for (std::int64_t e = 0; e < width; ++e) {
      dx[e] = rstd * (dy[e] * gain[e] - average_g - (x[e] - mean) * rstd * average_gn);
    }
  });
}

/// dgain[e] = sum over rows of dy (x - mean) rstd.
/// dy, x: [L, E]   mean, rstd: [L]   dgain: [E]
void layer_norm_gradient_gain(const KernelCall& call) {
  const double* dy = reals(call.inputs[0]);
  const double* x = reals(call.inputs[1]);
  const double* mean = reals(call.inputs[2]);
  const double* rstd = reals(call.inputs[3]);
  const std::int64_t width = last_extent(call.inputs[1]);
  for_each(call, width, rows(call.inputs[1]), [&](std::int64_t e) {
    double sum = 0;
    for (std::int64_t l = 0; l < rows(call.inputs[1]); ++l) {
      sum += dy[l * width + e] * (x[l * width + e] - mean[l]) * rstd[l];
    }
    put(call, e, sum);
  });
}

/// y = x rstd gain, rstd = 1 / sqrt(average of x^2 + epsilon), over the last dimension.
/// Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
/// x: [L, E]   gain: [E]   y: [L, E]   rstd: [L]
void rms_norm(const KernelCall& call) {
  const std::int64_t width = last_extent(call.inputs[0]);
  const double* gain = reals(call.inputs[1]);
  for_each(call, rows(call.inputs[0]), width, [&](std::int64_t l) {
    const double* x = reals(call.inputs[0]) + l * width;
    double* y = reals(call.outputs[0]) + l * width;
    double square = 0;
    for (std::int64_t e = 0; e < width; ++e) {
      square += x[e] * x[e] / static_cast<double>(width);
    }
    const double rstd = 1 / std::sqrt(square + call.attributes.real("epsilon"));
    for (std::int64_t e = 0; e < width; ++e) {
      y[e] = x[e] * rstd * gain[e];
    }
    reals(call.outputs[1])[l] = rstd;
  });
}

/// With n = x rstd and g = dy gain:  dx = rstd (g - n average(g n)).
/// dy, x: [L, E]   gain: [E]   rstd: [L]   dx: [L, E]
void rms_norm_gradient_input(const KernelCall& call) {
  const std::int64_t width = last_extent(call.inputs[1]);
  const double* gain = reals(call.inputs[2]);
  for_each(call, rows(call.inputs[1]), width, [&](std::int64_t l) {
    const double* dy = reals(call.inputs[0]) + l * width;
    const double* x = reals(call.inputs[1]) + l * width;
    const double rstd = reals(call.inputs[3])[l];
    double* dx = reals(call.outputs[0]) + l * width;
    double average_gn = 0;
    for (std::int64_t e = 0; e < width; ++e) {
      average_gn += dy[e] * gain[e] * x[e] * rstd / static_cast<double>(width);
    }
    for (std::int64_t e = 0; e < width; ++e) {
      dx[e] = rstd * (dy[e] * gain[e] - x[e] * rstd * average_gn);
    }
  });
}

/// dgain[e] = sum over rows of dy x rstd.
/// dy, x: [L, E]   rstd: [L]   dgain: [E]
void rms_norm_gradient_gain(const KernelCall& call) {
  const double* dy = reals(call.inputs[0]);
  const double* x = reals(call.inputs[1]);
  const double* rstd = reals(call.inputs[2]);
  const std::int64_t width = last_extent(call.inputs[1]);
  for_each(call, width, rows(call.inputs[1]), [&](std::int64_t e) {
    double sum = 0;
    for (std::int64_t l = 0; l < rows(call.inputs[1]); ++l) {
      sum += dy[l * width + e] * x[l * width + e] * rstd[l];
    }
    put(call, e, sum);
  });
}

const RegisterKernel register_layer_norm("reference", "layer_norm", {.run = layer_norm});
const RegisterKernel register_layer_norm_gradient_input("reference", "layer_norm_gradient_input",
                                                        {.run = layer_norm_gradient_input});
const RegisterKernel register_layer_norm_gradient_gain("reference", "layer_norm_gradient_gain",
                                                       {.run = layer_norm_gradient_gain});
const RegisterKernel register_rms_norm("reference", "rms_norm", {.run = rms_norm});
const RegisterKernel register_rms_norm_gradient_input("reference", "rms_norm_gradient_input",
                                                      {.run = rms_norm_gradient_input});
const RegisterKernel register_rms_norm_gradient_gain("reference", "rms_norm_gradient_gain",
                                                     {.run = rms_norm_gradient_gain});

}  // namespace
}  // namespace shardrun::device::reference
