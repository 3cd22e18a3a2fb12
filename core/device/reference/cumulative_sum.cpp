#include "core/device/reference/offsets.h"
#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

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

const RegisterKernel register_cumulative_sum("reference", "cumulative_sum", {.run = cumulative_sum});

}  // namespace
}  // namespace shardrun::device::reference
