#include <cmath>
#include <limits>

#include "core/device/reference/offsets.h"
#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// y[k] = fold(fold(first, x[k, r0]), x[k, r1]) … over the indices r of the dimensions `dims`.
template <typename Fold>
void reduce(const KernelCall& call, double first, const Fold& fold) {
  const TensorView& x = call.inputs[0];
  const std::vector<std::int64_t>& dims = call.attributes.integers("dims");
  const std::vector<std::int64_t> kept = offsets(x, other_dims(x, dims));
  const std::vector<std::int64_t> reduced = offsets(x, dims);
  for_each(call, call.outputs[0].elements(), static_cast<std::int64_t>(reduced.size()), [&](std::int64_t k) {
    double result = first;
    for (const std::int64_t r : reduced) {
      result = fold(result, reals(x)[kept[static_cast<std::size_t>(k)] + r]);
    }
    reals(call.outputs[0])[k] = result;
  });
}

void sum(const KernelCall& call) {
  reduce(call, 0, [](double a, double b) { return a + b; });
}

/// A shard divides by the number of elements of the whole tensor, so that the shards' results add up to the mean.
void mean(const KernelCall& call) {
  double count = 1;
  for (const std::int64_t dim : call.attributes.integers("dims")) {
    count *= static_cast<double>(call.inputs[0].global[static_cast<std::size_t>(dim)]);
  }
  reduce(call, 0, [=](double a, double b) { return a + b / count; });
}

void max(const KernelCall& call) {
  reduce(call, -std::numeric_limits<double>::infinity(),
         [](double a, double b) { return std::isnan(a) || a > b ? a : b; });
}

void min(const KernelCall& call) {
  reduce(call, std::numeric_limits<double>::infinity(),
         [](double a, double b) { return std::isnan(a) || a < b ? a : b; });
}

/// The index along `dim` of the first of the largest elements, or of the first NaN.
void argmax(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::int64_t dim = call.attributes.integer("dim");
  const std::vector<std::int64_t> kept = offsets(x, other_dims(x, {dim}));
  const std::vector<std::int64_t> along = offsets(x, {dim});
  for_each(call, call.outputs[0].elements(), static_cast<std::int64_t>(along.size()), [&](std::int64_t k) {
    const double* const from = reals(x) + kept[static_cast<std::size_t>(k)];
    std::size_t best = 0;
    for (std::size_t i = 1; i < along.size(); ++i) {
      const double value = from[along[i]];
      const double largest = from[along[best]];
      best = value > largest || (std::isnan(value) && !std::isnan(largest)) ? i : best;
    }
    integers(call.outputs[0])[k] = static_cast<std::int32_t>(best);
  });
}

/// y[k, r] = scale x[k] for all indices r along the dimensions `dims`.
void broadcast(const KernelCall& call) {
  const TensorView& y = call.outputs[0];
  const std::vector<std::int64_t>& dims = call.attributes.integers("dims");
  const double scale = call.attributes.real("scale");
  const std::vector<std::int64_t> kept = offsets(y, other_dims(y, dims));
  const std::vector<std::int64_t> repeated = offsets(y, dims);
  for_each(call, call.inputs[0].elements(), static_cast<std::int64_t>(repeated.size()), [&](std::int64_t k) {
    for (const std::int64_t r : repeated) {
      reals(y)[kept[static_cast<std::size_t>(k)] + r] = scale * reals(call.inputs[0])[k];
    }
  });
}

/// y[k] (+)= sum over l of x[l, k]: the gradient of repeating a tensor over leading dimensions.
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

/// y (+)= scale * sum of x.
void sum_all(const KernelCall& call) {
  double sum = 0;
  for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
    sum += reals(call.inputs[0])[i];
  }
  put(call, 0, call.attributes.real("scale") * sum);
}

void constant(const KernelCall& call) { reals(call.outputs[0])[0] = call.attributes.real("value"); }

/// y[...] = scale * s, in the shape of the second operand, whose elements are not read.
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

/// y_i = x_0 + … + x_i along dimension `dim`, or x_i + … + x_last if `reverse` is 1.
void cumulative_sum(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::int64_t dim = call.attributes.integer("dim");
  const bool reverse = call.attributes.integer("reverse") == 1;
  const std::vector<std::int64_t> columns = offsets(x, other_dims(x, {dim}));
  const std::vector<std::int64_t> along = offsets(x, {dim});
  const std::size_t length = along.size();
  for_each(call, static_cast<std::int64_t>(columns.size()), static_cast<std::int64_t>(length), [&](std::int64_t c) {
    double sum = 0;
    for (std::size_t i = 0; i < length; ++i) {
      const std::int64_t at = columns[static_cast<std::size_t>(c)] + along[reverse ? length - 1 - i : i];
      sum += reals(x)[at];
      reals(call.outputs[0])[at] = sum;
    }
  });
}

const RegisterKernel register_sum("reference", "sum", {.run = sum});
const RegisterKernel register_mean("reference", "mean", {.run = mean});
const RegisterKernel register_max("reference", "max", {.run = max});
const RegisterKernel register_min("reference", "min", {.run = min});
const RegisterKernel register_argmax("reference", "argmax", {.run = argmax});
const RegisterKernel register_broadcast("reference", "broadcast", {.run = broadcast});
const RegisterKernel register_sum_leading("reference", "sum_leading", {.run = sum_leading});
const RegisterKernel register_sum_all("reference", "sum_all", {.run = sum_all});
const RegisterKernel register_constant("reference", "constant", {.run = constant});
const RegisterKernel register_broadcast_scalar("reference", "broadcast_scalar", {.run = broadcast_scalar});
const RegisterKernel register_square_sum("reference", "square_sum", {.run = square_sum});
const RegisterKernel register_row_max("reference", "row_max", {.run = row_max});
const RegisterKernel register_cumulative_sum("reference", "cumulative_sum", {.run = cumulative_sum});

}  // namespace
}  // namespace shardrun::device::reference
