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

/// The first of the largest elements, or the first NaN.
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

/// y[k, r] = scale x[k] for all indices r of the dimensions `dims`.
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

const RegisterKernel register_sum("reference", "sum", {.run = sum});
const RegisterKernel register_mean("reference", "mean", {.run = mean});
const RegisterKernel register_max("reference", "max", {.run = max});
const RegisterKernel register_min("reference", "min", {.run = min});
const RegisterKernel register_argmax("reference", "argmax", {.run = argmax});
const RegisterKernel register_broadcast("reference", "broadcast", {.run = broadcast});

}  // namespace
}  // namespace shardrun::device::reference
