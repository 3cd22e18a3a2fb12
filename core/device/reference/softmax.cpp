#include <algorithm>
#include <cmath>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// max + log(sum of exp(x - max)). NaN if an element is NaN.
double log_sum_exp(const double* x, std::int64_t width) {
  double max = x[0];
  for (std::int64_t e = 1; e < width; ++e) {
    max = std::isnan(max) || max > x[e] ? max : x[e];
  }
  double sum = 0;
  for (std::int64_t e = 0; e < width; ++e) {
    sum += std::exp(x[e] - max);
  }
  return max + std::log(sum);
}

/// y = exp(x - log_sum_exp(x)).   x, y: [L, E]
void softmax(const KernelCall& call) {
  const std::int64_t width = last_extent(call.inputs[0]);
  for_each(call, rows(call.inputs[0]), width, [&](std::int64_t l) {
    const double* x = reals(call.inputs[0]) + l * width;
    double* y = reals(call.outputs[0]) + l * width;
    const double whole = log_sum_exp(x, width);
    for (std::int64_t e = 0; e < width; ++e) {
      y[e] = std::exp(x[e] - whole);
    }
  });
}

/// y = x - log_sum_exp(x).   x, y: [L, E]
void log_softmax(const KernelCall& call) {
  const std::int64_t width = last_extent(call.inputs[0]);
  for_each(call, rows(call.inputs[0]), width, [&](std::int64_t l) {
    const double* x = reals(call.inputs[0]) + l * width;
    double* y = reals(call.outputs[0]) + l * width;
    const double whole = log_sum_exp(x, width);
    for (std::int64_t e = 0; e < width; ++e) {
      y[e] = x[e] - whole;
    }
  });
}

/// dx = y (dy - sum of dy y).   dy, y, dx: [L, E]
void softmax_gradient(const KernelCall& call) {
  const std::int64_t width = last_extent(call.inputs[0]);
  for_each(call, rows(call.inputs[0]), width, [&](std::int64_t l) {
    const double* dy = reals(call.inputs[0]) + l * width;
    const double* y = reals(call.inputs[1]) + l * width;
    double* dx = reals(call.outputs[0]) + l * width;
    double sum = 0;
    for (std::int64_t e = 0; e < width; ++e) {
      sum += dy[e] * y[e];
    }
    for (std::int64_t e = 0; e < width; ++e) {
      dx[e] = y[e] * (dy[e] - sum);
    }
  });
}

/// dx = dy - exp(y) sum of dy.   dy, y, dx: [L, E]
void log_softmax_gradient(const KernelCall& call) {
  const std::int64_t width = last_extent(call.inputs[0]);
  for_each(call, rows(call.inputs[0]), width, [&](std::int64_t l) {
    const double* dy = reals(call.inputs[0]) + l * width;
    const double* y = reals(call.inputs[1]) + l * width;
    double* dx = reals(call.outputs[0]) + l * width;
    double sum = 0;
    for (std::int64_t e = 0; e < width; ++e) {
      sum += dy[e];
    }
    for (std::int64_t e = 0; e < width; ++e) {
      dx[e] = dy[e] - std::exp(y[e]) * sum;
    }
  });
}

const RegisterKernel register_softmax("reference", "softmax", {.run = softmax});
const RegisterKernel register_log_softmax("reference", "log_softmax", {.run = log_softmax});
const RegisterKernel register_softmax_gradient("reference", "softmax_gradient", {.run = softmax_gradient});
const RegisterKernel register_log_softmax_gradient("reference", "log_softmax_gradient", {.run = log_softmax_gradient});

}  // namespace
}  // namespace shardrun::device::reference
