#include "core/device/reference/random.h"
#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// A local element's place in the whole sample: its row-major index over the global dimensions 1, 2, ...
std::int64_t index_in_sample(const TensorView& x, std::int64_t local) {
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (std::uint32_t d = x.rank - 1; d >= 1; --d) {
    index += (x.origin[d] + local % x.shape[d]) * stride;
    stride *= x.global[d];
    local /= x.shape[d];
  }
  return index;
}

/// y = x r / (1 - rate), r ~ Bernoulli(1 - rate). Srivastava et al. 2014, JMLR 15, section 4, scaled while training.
/// x: [batch, ...]
void dropout(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const Dropout stream(call.scalars, call.attributes.text("stream"), call.attributes.real("rate"));
  const std::int64_t sample_size = extent(x, 1, x.rank);
  for_each(call, x.shape[0], sample_size, [&](std::int64_t b) {
    const std::int64_t sample = call.scalars.first_sample + x.origin[0] + b;
    for (std::int64_t i = 0; i < sample_size; ++i) {
      const double factor = stream.factor(sample, index_in_sample(x, i));
      const double value = reals(x)[b * sample_size + i];
      reals(call.outputs[0])[b * sample_size + i] = factor == 0 ? 0 : value * factor;
    }
  });
}

const RegisterKernel register_dropout("reference", "dropout", {.run = dropout});

}  // namespace
}  // namespace shardrun::device::reference
