#include <cmath>

#include "core/device/reference/views.h"
#include "core/device/rope.h"

namespace shardrun::device::reference {
namespace {

/// Rotates pair i of each row at position p by the angle p * rope_frequency(i), or back. Su et al. 2021,
/// arXiv:2104.09864, equation 34. Angles are float32.   x, y: [K, positions, M, E]   given: i32 [K, positions]
void rope(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const auto dim = static_cast<std::uint32_t>(call.attributes.integer("dim"));
  const std::int32_t* const given = call.inputs.size() > 1 ? integers(call.inputs[1]) : nullptr;
  const std::int64_t offset = call.attributes.integer("offset");
  const bool interleaved = call.attributes.integer("interleaved") == 1;
  const double sign = call.attributes.integer("inverse") == 1 ? -1 : 1;
  const double factor = rope_factor(call.attributes);
  const std::int64_t width = last_extent(x);
  const std::int64_t half = width / 2;
  const std::int64_t middle = extent(x, dim + 1, x.rank - 1);
  for_each(call, rows(x), 50 * width, [&](std::int64_t l) {
    const double* from = reals(x) + l * width;
    double* to = reals(call.outputs[0]) + l * width;
    const std::int64_t at = l / middle;
    const std::int64_t place = given != nullptr ? given[at] : x.origin[dim] + at % x.shape[dim];
    const auto position = static_cast<float>(offset + place);
    for (std::int64_t i = 0; i < half; ++i) {
      const float angle = position * rope_frequency(call.attributes, i, half);
      const double cosine = factor * std::cos(static_cast<double>(angle));
      const double sine = factor * sign * std::sin(static_cast<double>(angle));
      const std::int64_t first_of_pair = interleaved ? 2 * i : i;
      const std::int64_t second_of_pair = interleaved ? 2 * i + 1 : i + half;
      const double a = from[first_of_pair];
      const double b = from[second_of_pair];
      to[first_of_pair] = a * cosine - b * sine;
      to[second_of_pair] = b * cosine + a * sine;
    }
  });
}

const RegisterKernel register_rope("reference", "rope", {.run = rope});

}  // namespace
}  // namespace shardrun::device::reference
