#include "core/device/cuda/launch.h"
#include "core/device/cuda/values.h"
#include "core/device/rope.h"

namespace shardrun::device::cuda {
namespace {

/// Rotates pair i of each row at position p by the angle p / base^(2i / E), or back, and multiplies it by `factor`.
/// Su et al. 2021, arXiv:2104.09864, equation 34. Frequencies and angles are float32. A block computes the rows of one
/// position, which share their cosines and sines.
/// x, y: [K, positions, M, E]
struct Rope {
  Reals x;
  Reals y;
  const std::int32_t* places;  ///< positions [K, positions], used instead of indices; null: indices are used
  std::int64_t positions;
  std::int64_t first;  ///< the position of index 0
  std::int64_t middle;
  int half;
  double base;
  float factor;
  float sign;
  bool given;  ///< frequencies are given; otherwise `base` determines them
  bool interleaved;
  float frequencies[256];

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const Shared<float> cosines = block.shared<float>(half);
    const Shared<float> sines = block.shared<float>(half);
    const std::int64_t position = first + (places != nullptr ? places[block.index()] : block.index() % positions);
    for (int i = block.thread(); i < half; i += block.threads()) {
      // The angle is reduced to half a turn in double precision, so that far positions lose no digits.
      constexpr double turn = 6.283185307179586;
      const float share = static_cast<float>(2 * i) / static_cast<float>(2 * half);
      const float frequency =
          given ? frequencies[i] : 1.0F / static_cast<float>(::pow(base, static_cast<double>(share)));
      const double angle = static_cast<float>(position) * frequency;
      const auto reduced = static_cast<float>(angle - ::rint(angle / turn) * turn);
      cosines[i] = factor * FloatMath::cos(reduced);
      sines[i] = sign * factor * FloatMath::sin(reduced);
    }
    block.sync();
    const std::int64_t from = block.index() * middle * 2 * half;
    for (std::int64_t pair = block.thread(); pair < middle * half; pair += block.threads()) {
      const int i = static_cast<int>(pair % half);
      const std::int64_t row = from + pair / half * 2 * half;
      const std::int64_t at_a = row + (interleaved ? 2 * i : i);
      const std::int64_t at_b = row + (interleaved ? 2 * i + 1 : i + half);
      const float a = x.get(at_a);
      const float b = x.get(at_b);
      y.set(at_a, a * cosines[i] - b * sines[i]);
      y.set(at_b, b * cosines[i] + a * sines[i]);
    }
  }
};

void rope(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  if (x.elements() == 0) {
    return;
  }
  const auto dim = static_cast<std::uint32_t>(call.attributes.integer("dim"));
  const int half = static_cast<int>(columns(x) / 2);
  Rope body{.x = reals(x),
            .y = reals(call.outputs[0]),
            .places = call.inputs.size() > 1 ? integers(call.inputs[1]) : nullptr,
            .positions = x.shape[dim],
            .first = call.attributes.integer("offset") + (call.inputs.size() > 1 ? 0 : x.origin[dim]),
            .middle = extent(x, dim + 1, x.rank - 1),
            .half = half,
            .base = call.attributes.real("base"),
            .factor = rope_factor(call.attributes),
            .sign = call.attributes.integer("inverse") == 1 ? -1.0F : 1.0F,
            .given = call.attributes.has("frequencies") && !call.attributes.reals("frequencies").empty(),
            .interleaved = call.attributes.integer("interleaved") == 1,
            .frequencies = {}};
  for (int i = 0; body.given && i < half; ++i) {
    body.frequencies[i] = rope_frequency(call.attributes, i, half);
  }
  launch(call, extent(x, 0, dim + 1), most_threads, 2 * shared_bytes<float>(half), body);
}

const AddKernels rotation({{"rope", {.run = rope}}});

}  // namespace
}  // namespace shardrun::device::cuda
