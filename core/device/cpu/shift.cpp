#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu {
namespace {

using namespace SHARDRUN_KERNEL_VARIANT;

/// y[i] = x[i + offset] along one dimension, in global coordinates.
struct Shift {
  std::int64_t offset;
  bool periodic;
  float value;
  std::int64_t global;  ///< length of the dimension
  std::int64_t y_origin, y_size;
  std::int64_t x_origin, x_size;
  std::int64_t inner;  ///< elements from one index of the dimension to the next
  bool received;       ///< other shards' elements of x will be received later; otherwise x must hold all
};

constexpr std::int64_t outside = -1;
constexpr std::int64_t elsewhere = -2;

/// Consecutive indices of y, up to `end`. Their elements are consecutive in x from index `source` on, with two
/// exceptions for `source`:
/// - `outside`: the elements lie outside of the global array;
/// - `elsewhere`: x lacks the elements, which will be received.
struct Stretch {
  std::int64_t end;
  std::int64_t source;
};

Stretch stretch_at(const Shift& s, std::int64_t begin) {
  const std::int64_t wanted = s.y_origin + begin + s.offset;
  if (!s.periodic && wanted < 0) {
    return {std::min(s.y_size, begin - wanted), outside};
  }
  if (!s.periodic && wanted >= s.global) {
    return {s.y_size, outside};
  }
  const std::int64_t from_origin = wanted - s.x_origin;
  const std::int64_t local = s.periodic ? (from_origin % s.global + s.global) % s.global : from_origin;
  if ((local < 0 || local >= s.x_size) && s.received) {
    return {begin + 1, elsewhere};
  }
  if (local < 0 || local >= s.x_size) {
    throw Error(ErrorCode::internal, "shift: the operand's shard does not hold an element that the result needs");
  }
  const std::int64_t in_x = s.x_size - local;
  const std::int64_t in_array = s.periodic ? in_x : s.global - wanted;
  return {std::min(s.y_size, begin + std::min(in_x, in_array)), local};
}

void copy_elements(Reals from, Reals to, std::int64_t count) {
  if (from.bfloat == to.bfloat) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>((from + count).data - from.data));
  } else {
    vectors(0, count, [=](auto at) { store(to, at, load(from, at)); });
  }
}

void shift_plane(const Shift& s, Reals x, Reals y) {
  for (std::int64_t begin = 0; begin < s.y_size;) {
    const Stretch stretch = stretch_at(s, begin);
    const std::int64_t count = (stretch.end - begin) * s.inner;
    if (stretch.source == outside) {
      const Reals to = y + begin * s.inner;
      vectors(0, count, [=](auto at) { store(to, at, splat(s.value)); });
    } else if (stretch.source != elsewhere) {
      copy_elements(x + stretch.source * s.inner, y + begin * s.inner, count);
    }
    begin = stretch.end;
  }
}

/// Past its ends, the array wraps ("periodic") or has `value` everywhere ("fixed"). If x is a shard with a halo, its
/// origin says which elements it holds, and is negative if the halo wraps at the front. If x lacks an element, this
/// does not write that element of y with `missing`, and throws Error{internal} without.
void shift(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& y = call.outputs[0];
  const auto dim = static_cast<std::uint32_t>(call.attributes.integer("dim"));
  const Shift whole = {call.attributes.integer("offset"),
                       call.attributes.text("boundary") == "periodic",
                       static_cast<float>(call.attributes.real("value")),
                       x.global[dim],
                       y.origin[dim],
                       y.shape[dim],
                       x.origin[dim],
                       x.shape[dim],
                       extent(x, dim + 1, x.rank),
                       call.attributes.has("missing")};
  for (std::int64_t begin = 0; begin < whole.y_size;) {
    begin = stretch_at(whole, begin).end;  // throws an error here, not on a worker
  }
  const std::int64_t planes = extent(x, 0, dim);
  const auto from = reals<Reals>(x);
  const auto to = reals<Reals>(y);
  if (planes > 1) {
    const std::int64_t x_plane = whole.x_size * whole.inner;
    const std::int64_t y_plane = whole.y_size * whole.inner;
    call.threads.split(planes, row_grain(y_plane), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        shift_plane(whole, from + p * x_plane, to + p * y_plane);
      }
    });
  } else if (planes == 1) {
    call.threads.split(whole.y_size, row_grain(whole.inner), [&](std::int64_t begin, std::int64_t end) {
      Shift part = whole;
      part.y_origin += begin;
      part.y_size = end - begin;
      shift_plane(part, from, to + begin * part.inner);
    });
  }
}

const RegisterKernel register_shift("cpu", "shift", {.run = shift});

}  // namespace
}  // namespace shardrun::device::cpu
