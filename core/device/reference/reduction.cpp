#include <cmath>
#include <limits>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// y[k] = sum over l of x[l, k]: the gradient of repeating a tensor over leading dimensions.
/// x: [L, K...]   y: [K...], `keep` dimensions
void sum_leading(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const auto keep = static_cast<std::uint32_t>(call.attributes.integer("keep"));
  const std::int64_t ls = extent(x, 0, x.rank - keep);
  const std::int64_t ks = extent(x, x.rank - keep, x.rank);
  for_each(call, ks, ls, [&](std::int64_t k) {
    double sum = 0;
    for (std::int64_t l = 0; l < ls; ++l) {
      sum += reals(x)[l * ks + k];
    }
    put(call, k, sum);
  });
}

/// y = scale * sum of x.
void sum_all(const KernelCall& call) {
  double sum = 0;
  for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
    sum += reals(call.inputs[0])[i];
  }
  put(call, 0, call.attributes.real("scale") * sum);
}

void constant(const KernelCall& call) { reals(call.outputs[0])[0] = call.attributes.real("value"); }

/// y[...] = scale * s, in the shape of the second operand. Does not read its elements.
void broadcast_scalar(const KernelCall& call) {
  const double value = call.attributes.real("scale") * reals(call.inputs[0])[0];
  for_each(call, call.outputs[0].elements(), 1, [&](std::int64_t i) { reals(call.outputs[0])[i] = value; });
}

/// y = sum of x^2.
void square_sum(const KernelCall& call) {
  const double* x = reals(call.inputs[0]);
  double sum = 0;
  for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
    sum += x[i] * x[i];
  }
  reals(call.outputs[0])[0] = sum;
}

/// y[l] = the largest x[l, v]; NaN if one of them is NaN; -Inf if the row is empty.
/// x: [L, V]   y: [L]
void row_max(const KernelCall& call) {
  const std::int64_t width = last_extent(call.inputs[0]);
  for_each(call, rows(call.inputs[0]), width, [&](std::int64_t l) {
    const double* x = reals(call.inputs[0]) + l * width;
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t v = 0; v < width; ++v) {
      largest = std::isnan(x[v]) || x[v] > largest ? x[v] : largest;
    }
    reals(call.outputs[0])[l] = largest;
  });
}

const RegisterKernel register_sum_leading("reference", "sum_leading", {.run = sum_leading});
const RegisterKernel register_sum_all("reference", "sum_all", {.run = sum_all});
const RegisterKernel register_constant("reference", "constant", {.run = constant});
const RegisterKernel register_broadcast_scalar("reference", "broadcast_scalar", {.run = broadcast_scalar});
const RegisterKernel register_square_sum("reference", "square_sum", {.run = square_sum});
const RegisterKernel register_row_max("reference", "row_max", {.run = row_max});

}  // namespace
}  // namespace shardrun::device::reference
