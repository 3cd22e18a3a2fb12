#include <cmath>
#include <numbers>

#include "core/base/error.h"
#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// x Phi(x), where Phi is the standard normal distribution function. Hendrycks and Gimpel 2016, arXiv:1606.08415,
/// section 2.
struct GeluErf {
  static double phi(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }  // (1 + erf) / 2 would lose digits
  static double value(double x) { return x * phi(x); }
  static double slope(double x) {
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    return phi(x) + x * density;
  }
};

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). The same paper and section.
struct GeluTanh {
  static double slope_at_zero() { return std::sqrt(2 / std::numbers::pi); }
  static double inner(double x) { return slope_at_zero() * (x + 0.044715 * x * x * x); }
  /// (1 + tanh(x)) / 2, in a form that loses no digits far left of zero. So left(-x), which is (1 - tanh(x)) / 2, loses
  /// none far right of zero.
  static double left(double x) { return 1 / (1 + std::exp(-2 * x)); }

  static double value(double x) { return x * left(inner(x)); }
  static double slope(double x) {
    const double at = inner(x);
    const double inner_slope = slope_at_zero() * (1 + 3 * 0.044715 * x * x);
    return left(at) * (1 + 2 * x * left(-at) * inner_slope);
  }
};

template <typename Form>
void gelu_of(const KernelCall& call) {
  const double* x = reals(call.inputs[0]);
  double* y = reals(call.outputs[0]);
  for_each(call, call.inputs[0].elements(), 1, [&](std::int64_t i) { y[i] = Form::value(x[i]); });
}

template <typename Form>
void gelu_gradient_of(const KernelCall& call) {
  const double* dy = reals(call.inputs[0]);
  const double* x = reals(call.inputs[1]);
  double* dx = reals(call.outputs[0]);
  for_each(call, call.inputs[0].elements(), 1, [&](std::int64_t i) { dx[i] = dy[i] * Form::slope(x[i]); });
}

/// Runs the kernel of the form (erf or tanh) that the op's attributes name.
void choose_form(const KernelCall& call, void (*erf)(const KernelCall&), void (*tanh)(const KernelCall&)) {
  const std::string& form = call.attributes.text("form");
  if (form != "erf" && form != "tanh") {
    throw Error(ErrorCode::internal, "gelu: form is \"" + form + "\", not \"erf\" or \"tanh\"");
  }
  (form == "erf" ? erf : tanh)(call);
}

void gelu(const KernelCall& call) { choose_form(call, gelu_of<GeluErf>, gelu_of<GeluTanh>); }

void gelu_gradient(const KernelCall& call) { choose_form(call, gelu_gradient_of<GeluErf>, gelu_gradient_of<GeluTanh>); }

const RegisterKernel register_gelu("reference", "gelu", {.run = gelu});
const RegisterKernel register_gelu_gradient("reference", "gelu_gradient", {.run = gelu_gradient});

}  // namespace
}  // namespace shardrun::device::reference
