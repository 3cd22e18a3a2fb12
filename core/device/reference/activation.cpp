#include <cmath>
#include <numbers>

#include "core/base/error.h"
#include "core/device/reference/elements.h"

namespace shardrun::device::reference {
namespace {

/// y = max(x, 0), NaN staying NaN.
void relu(const KernelCall& call) {
  const double* x = reals(call.inputs[0]);
  double* y = reals(call.outputs[0]);
  for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
    y[i] = x[i] <= 0 ? 0 : x[i];
  }
}

/// dx = dy where y > 0. y is relu's result.
void relu_gradient(const KernelCall& call) {
  const double* dy = reals(call.inputs[0]);
  const double* y = reals(call.inputs[1]);
  double* dx = reals(call.outputs[0]);
  for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
    dx[i] = y[i] > 0 ? dy[i] : 0;
  }
}

struct Point {
  double value;
  double slope;
};

/// x Phi(x), Phi the standard normal distribution function. Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2.
Point gelu_erf(double x) {
  const double phi = 0.5 * std::erfc(-x / std::numbers::sqrt2);  // (1 + erf) / 2 cancels far left of zero
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
  return {x * phi, phi + x * density};
}

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). The same paper and section.
Point gelu_tanh(double x) {
  const double slope_at_zero = std::sqrt(2 / std::numbers::pi);
  const double inner = slope_at_zero * (x + 0.044715 * x * x * x);
  const double inner_slope = slope_at_zero * (1 + 3 * 0.044715 * x * x);
  const double left = 1 / (1 + std::exp(-2 * inner));  // (1 + tanh) / 2, which cancels far left of zero
  const double right = 1 / (1 + std::exp(2 * inner));  // (1 - tanh) / 2
  return {x * left, left + 2 * x * left * right * inner_slope};
}

using Activation = Point (*)(double);

Activation gelu_form(const KernelCall& call) {
  const std::string& form = call.attributes.text("form");
  if (form == "erf") {
    return gelu_erf;
  }
  if (form == "tanh") {
    return gelu_tanh;
  }
  throw Error(ErrorCode::internal, "gelu: form is \"" + form + "\", not \"erf\" or \"tanh\"");
}

void gelu(const KernelCall& call) {
  const Activation activation = gelu_form(call);
  const double* x = reals(call.inputs[0]);
  double* y = reals(call.outputs[0]);
  for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
    y[i] = activation(x[i]).value;
  }
}

void gelu_gradient(const KernelCall& call) {
  const Activation activation = gelu_form(call);
  const double* dy = reals(call.inputs[0]);
  const double* x = reals(call.inputs[1]);
  double* dx = reals(call.outputs[0]);
  for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
    dx[i] = dy[i] * activation(x[i]).slope;
  }
}

const RegisterKernel register_relu("reference", "relu", {.run = relu});
const RegisterKernel register_relu_gradient("reference", "relu_gradient", {.run = relu_gradient});
const RegisterKernel register_gelu("reference", "gelu", {.run = gelu});
const RegisterKernel register_gelu_gradient("reference", "gelu_gradient", {.run = gelu_gradient});

}  // namespace
}  // namespace shardrun::device::reference
