#include "core/device/cpu/elementwise.h"
#include "core/device/cpu/random.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// The place in the whole sample at which row `row` begins: a row-major index over the global dimensions 1, 2, …
std::int64_t place_in_sample(const TensorView& x, std::int64_t row) {
  std::int64_t index = x.rank > 1 ? x.origin[x.rank - 1] : 0;
  std::int64_t stride = x.rank > 1 ? x.global[x.rank - 1] : 1;
  for (std::uint32_t d = x.rank - 1; d-- > 1;) {
    index += (x.origin[d] + row % x.shape[d]) * stride;
    stride *= x.global[d];
    row /= x.shape[d];
  }
  return index;
}

/// x: [batch, ...]   y = x * factor; a dropped element is zero even if x is NaN
template <typename Pointer>
void dropout(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const DropoutStream stream(call, call.attributes.real("rate"));
  const auto from = reals<Pointer>(x);
  const auto to = reals<Pointer>(call.outputs[0]);
  const std::int64_t width = x.rank > 1 ? columns(x) : 1;
  const std::int64_t rows_in_sample = extent(x, 1, x.rank > 1 ? x.rank - 1 : 1);
  const std::int64_t row_count = x.shape[0] * rows_in_sample;
  call.threads.split(row_count, row_grain(8 * width), [=, &x, &call](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t sample = call.scalars.first_sample + x.origin[0] + r / rows_in_sample;
      const std::int64_t place = place_in_sample(x, r % rows_in_sample);
      stream.factors(sample, place, place + width, [=](std::int64_t first, std::int64_t last, const float* factors) {
        const std::int64_t offset = r * width + first - place;
        vectors(0, last - first, [=](auto at) {
          const vec factor = load(factors, at);
          store(to + offset, at, factor != 0.0F ? load(from + offset, at) * factor : vec{});
        });
      });
    }
  });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(dropout, {"dropout", {.run = by_type<dropout<float*>, dropout<Reals>>}})
