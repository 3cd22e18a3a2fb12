#include "core/device/cuda/launch.h"
#include "core/device/cuda/loops.h"
#include "core/device/cuda/random.h"

namespace shardrun::device::cuda {
namespace {

/// y = x r / (1 - rate), r ~ Bernoulli(1 - rate). A thread computes four elements of a sample. Srivastava et al. 2014,
/// JMLR 15, section 4, scaled while training.
struct WholeSamples {
  Reals x;
  Reals y;
  DropoutStream stream;
  std::int64_t sample_size;
  std::int64_t first_sample;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t number) const {
    const std::int64_t blocks = (sample_size + 3) / 4;
    const std::int64_t b = number / blocks;
    const std::int64_t i = number % blocks * 4;
    const DropoutStream::Factors factors = stream.factors(first_sample + b, i / 4);
    for (int k = 0; k < 4; ++k) {
      if (i + k < sample_size) {
        const std::int64_t at = b * sample_size + i + k;
        y.set(at, factors.of[k] == 0.0F ? 0.0F : x.get(at) * factors.of[k]);
      }
    }
  }
};

/// The same for a part of each sample, one element per thread.
struct PartsOfSamples {
  Reals x;
  Reals y;
  DropoutStream stream;
  std::int64_t sample_size;
  std::int64_t first_sample;
  std::int64_t first_index;  ///< the index in its sample of the part's first element
  Loops<1> in_sample;        ///< from an element of the part to its index in the sample, relative to first_index

  SHARDRUN_ON_DEVICE void operator()(std::int64_t at) const {
    const std::int64_t index = first_index + in_sample.offset(at % sample_size);
    const float factor = stream.factor(first_sample + at / sample_size, index);
    y.set(at, factor == 0.0F ? 0.0F : x.get(at) * factor);
  }
};

/// x: [batch, ...]
void dropout(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const DropoutStream stream(call, call.attributes.real("rate"));
  const std::int64_t sample_size = extent(x, 1, x.rank);
  const std::int64_t first_sample = call.scalars.first_sample + x.origin[0];
  bool whole = true;
  std::int64_t first_index = 0;
  std::int64_t stride = 1;
  Loops<1> in_sample;
  for (std::uint32_t d = x.rank - 1; d >= 1; --d) {
    whole = whole && x.shape[d] == x.global[d];
    in_sample.add_outer(x.shape[d], stride);
    first_index += x.origin[d] * stride;
    stride *= x.global[d];
  }
  if (whole) {
    for_each(call, x.shape[0] * ((sample_size + 3) / 4),
             WholeSamples{reals(x), reals(call.outputs[0]), stream, sample_size, first_sample});
  } else {
    for_each(
        call, x.elements(),
        PartsOfSamples{reals(x), reals(call.outputs[0]), stream, sample_size, first_sample, first_index, in_sample});
  }
}

const AddKernels kernels({{"dropout", {.run = dropout}}});

}  // namespace
}  // namespace shardrun::device::cuda
