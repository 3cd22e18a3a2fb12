#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

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

const RegisterKernel register_add_n("reference", "add_n", {.run = add_n});
const RegisterKernel register_linear_combination("reference", "linear_combination", {.run = linear_combination});

}  // namespace
}  // namespace shardrun::device::reference
