#include "core/device/cpu/vec_math.h"
#include "core/device/cpu/views.h"
#include "core/device/rope.h"

// Rotary position embedding (Su et al. 2021, arXiv:2104.09864). The cosines and sines of all angles are computed first,
// for each index along the dimension of positions, or for each position of the second operand if there is one.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// x as [K, positions, middle, 2 half]. The op rotates the pairs in each row of 2 half elements. If the second operand
/// gives positions, `positions` includes K.
struct RopeShape {
  std::int64_t positions;
  std::int64_t middle;
  std::int64_t half;  ///< pairs in a row
};

/// Scratch: the frequency of each pair, and [positions, half] cosines and sines.
struct Angles {
  Angles(const KernelCall& call, const RopeShape& at)
      : frequencies(reinterpret_cast<float*>(call.scratch.data())),
        cosines(frequencies + at.half),
        sines(cosines + at.positions * at.half) {}

  float* frequencies;
  float* cosines;
  float* sines;
};

/// Reduces the float32 angles to half a turn in float64, so that sines and cosines of large angles lose no digits.
void compute_angles(const KernelCall& call, const RopeShape& at, const Angles& angles) {
  constexpr double turn = 6.283185307179586;
  const float factor = rope_factor(call.attributes);
  const float sign = call.attributes.integer("inverse") == 1 ? -factor : factor;
  const std::int32_t* const given = call.inputs.size() > 1 ? integers(call.inputs[1]) : nullptr;
  const std::int64_t offset = call.attributes.integer("offset");
  const std::int64_t origin = call.inputs[0].origin[static_cast<std::size_t>(call.attributes.integer("dim"))];
  for (std::int64_t i = 0; i < at.half; ++i) {
    angles.frequencies[i] = rope_frequency(call.attributes, i, at.half);
  }
  call.threads.split(at.positions, row_grain(16 * at.half), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      float* cosines = angles.cosines + p * at.half;
      float* sines = angles.sines + p * at.half;
      const auto position = static_cast<float>(offset + (given != nullptr ? given[p] : origin + p));
      for (std::int64_t i = 0; i < at.half; ++i) {
        const double angle = position * angles.frequencies[i];
        sines[i] = static_cast<float>(angle - __builtin_rint(angle / turn) * turn);
      }
      vectors(0, at.half, [=](auto i) {
        const vec angle = load(sines, i);
        store(cosines, i, sin_cos(angle, 1) * factor);
        store(sines, i, sin_cos(angle, 0) * sign);
      });
    }
  });
}

template <typename Pointer>
void turn_row(Pointer from, Pointer to, const float* cosines, const float* sines, std::int64_t half, bool interleaved) {
  if (interleaved) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = get(from, 2 * i);
      const float b = get(from, 2 * i + 1);
      put(to, 2 * i, a * cosines[i] - b * sines[i]);
      put(to, 2 * i + 1, b * cosines[i] + a * sines[i]);
    }
    return;
  }
  vectors(0, half, [=](auto i) {
    const vec a = load(from, i);
    const vec b = load(from + half, i);
    const vec cosine = load(cosines, i);
    const vec sine = load(sines, i);
    store(to, i, a * cosine - b * sine);
    store(to + half, i, b * cosine + a * sine);
  });
}

RopeShape rope_shape(const std::int64_t* shape, std::uint32_t rank, std::int64_t dim, bool given) {
  RopeShape at{.positions = shape[dim], .middle = 1, .half = shape[rank - 1] / 2};
  for (std::int64_t d = 0; given && d < dim; ++d) {
    at.positions *= shape[d];
  }
  for (std::int64_t d = dim + 1; d + 1 < rank; ++d) {
    at.middle *= shape[d];
  }
  return at;
}

template <typename Pointer>
void rope(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  if (x.elements() == 0) {
    return;
  }
  const RopeShape at = rope_shape(x.shape.data(), x.rank, call.attributes.integer("dim"), call.inputs.size() > 1);
  const Angles angles(call, at);
  compute_angles(call, at, angles);
  const bool interleaved = call.attributes.integer("interleaved") == 1;
  const auto from = reals<Pointer>(x);
  const auto to = reals<Pointer>(call.outputs[0]);
  call.threads.split(rows(x), row_grain(2 * at.half), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t row = r / at.middle % at.positions * at.half;
      const std::int64_t begin_of_row = r * 2 * at.half;
      turn_row(from + begin_of_row, to + begin_of_row, angles.cosines + row, angles.sines + row, at.half, interleaved);
    }
  });
}

std::size_t angle_bytes(const graph::OpShape& shape, int) {
  const graph::TensorType& x = shape.inputs[0];
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < x.shape.size(); ++d) {
    elements *= x.shape.data()[d];
  }
  const RopeShape at = rope_shape(x.shape.data(), static_cast<std::uint32_t>(x.shape.size()),
                                  shape.attributes.integer("dim"), shape.inputs.size() > 1);
  const auto half = static_cast<std::size_t>(elements == 0 ? 0 : at.half);
  return half * sizeof(float) * (1 + 2 * static_cast<std::size_t>(at.positions));
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(rope, {"rope", {by_type<rope<float*>, rope<Reals>>, angle_bytes}})
