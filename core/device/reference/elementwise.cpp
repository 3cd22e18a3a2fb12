#include <algorithm>
#include <cmath>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// y = a + b, with b broadcast over the leading dimensions that it lacks.
void add(const KernelCall& call) {
  const double* a = reals(call.inputs[0]);
  const double* b = reals(call.inputs[1]);
  double* y = reals(call.outputs[0]);
  const TensorView& repeated = call.inputs[1];
  const std::int64_t period = repeated.elements();
  const std::int64_t width = repeated.rank == 0 ? 1 : std::max<std::int64_t>(1, last_extent(repeated));
  for_each(call, call.inputs[0].elements() / width, width, [&](std::int64_t l) {
    for (std::int64_t i = l * width; i < (l + 1) * width; ++i) {
      y[i] = a[i] + b[l * width % period + i - l * width];
    }
  });
}

/// y = ((x0 + x1) + x2) + ...
void add_n(const KernelCall& call) {
  double* y = reals(call.outputs[0]);
  for_each(call, call.outputs[0].elements(), 1, [&](std::int64_t i) {
    double sum = reals(call.inputs[0])[i];
    for (std::size_t k = 1; k < call.inputs.size(); ++k) {
      sum += reals(call.inputs[k])[i];
    }
    y[i] = sum;
  });
}

void multiply(const KernelCall& call) {
  const double* a = reals(call.inputs[0]);
  const double* b = reals(call.inputs[1]);
  double* y = reals(call.outputs[0]);
  for_each(call, call.inputs[0].elements(), 1, [&](std::int64_t i) { y[i] = a[i] * b[i]; });
}

/// y = (c0 x0 + c1 x1) + ...
void linear_combination(const KernelCall& call) {
  const std::vector<double>& coefficients = call.attributes.reals("coefficients");
  double* y = reals(call.outputs[0]);
  for_each(call, call.outputs[0].elements(), 1, [&](std::int64_t i) {
    double sum = coefficients[0] * reals(call.inputs[0])[i];
    for (std::size_t k = 1; k < call.inputs.size(); ++k) {
      sum += coefficients[k] * reals(call.inputs[k])[i];
    }
    y[i] = sum;
  });
}

template <double (*function)(double)>
void map(const KernelCall& call) {
  const double* x = reals(call.inputs[0]);
  double* y = reals(call.outputs[0]);
  for_each(call, call.inputs[0].elements(), 1, [&](std::int64_t i) { y[i] = function(x[i]); });
}

double negative(double x) { return -x; }
double sine(double x) { return std::sin(x); }
double cosine(double x) { return std::cos(x); }

const RegisterKernel register_add("reference", "add", {.run = add});
const RegisterKernel register_add_n("reference", "add_n", {.run = add_n});
const RegisterKernel register_multiply("reference", "multiply", {.run = multiply});
const RegisterKernel register_linear_combination("reference", "linear_combination", {.run = linear_combination});
const RegisterKernel register_negate("reference", "negate", {.run = map<negative>});
const RegisterKernel register_sin("reference", "sin", {.run = map<sine>});
const RegisterKernel register_cos("reference", "cos", {.run = map<cosine>});

}  // namespace
}  // namespace shardrun::device::reference
