#include <algorithm>

#include "core/base/error.h"
#include "core/device/elements.h"
#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

std::int64_t modulo(std::int64_t value, std::int64_t size) { return (value % size + size) % size; }

/// y[i] = x[i + offset] along one dimension, in global coordinates. Past its ends the array wraps ("periodic"), or has
/// `value` everywhere ("fixed"). x must hold every element that y needs. If x is a shard with a halo, its origin says
/// which elements it holds; the origin may be negative if the halo wraps. With `missing`, x may lack elements, and the
/// elements of y that need them are left unchanged.
void shift(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& y = call.outputs[0];
  const auto dim = static_cast<std::uint32_t>(call.attributes.integer("dim"));
  const std::int64_t offset = call.attributes.integer("offset");
  const bool periodic = call.attributes.text("boundary") == "periodic";
  const std::int64_t size = x.global[dim];
  const std::int64_t inner = extent(x, dim + 1, x.rank);
  for (std::int64_t o = 0; o < extent(x, 0, dim); ++o) {
    for (std::int64_t i = 0; i < y.shape[dim]; ++i) {
      const std::int64_t wanted = y.origin[dim] + i + offset;
      const bool outside = !periodic && (wanted < 0 || wanted >= size);
      const std::int64_t local = periodic ? modulo(wanted - x.origin[dim], size) : wanted - x.origin[dim];
      const bool missing = !outside && (local < 0 || local >= x.shape[dim]);
      if (missing && call.attributes.has("missing")) {
        continue;
      }
      if (missing) {
        throw Error(ErrorCode::internal, "shift: the operand's shard does not hold an element that the result needs");
      }
      for (std::int64_t k = 0; k < inner; ++k) {
        reals(y)[(o * y.shape[dim] + i) * inner + k] =
            outside ? call.attributes.real("value") : reals(x)[(o * x.shape[dim] + local) * inner + k];
      }
    }
  }
}

/// y[b, :] = x[b, position, :].
/// x: [B, T, E]   y: [B, E]
void take_position(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::int64_t width = x.shape[2];
  for_each(call, x.shape[0], width, [&](std::int64_t b) {
    const double* row = reals(x) + (b * x.shape[1] + call.scalars.position) * width;
    std::copy(row, row + width, reals(call.outputs[0]) + b * width);
  });
}

void copy_integers(const KernelCall& call) {
  const std::int32_t* source = integers(call.inputs[0]);
  std::copy(source, source + call.inputs[0].elements(), integers(call.outputs[0]));
}

/// y = x, or y += x.
void copy(const KernelCall& call) {
  if (call.inputs[0].dtype == graph::DType::i32) {
    copy_integers(call);
    return;
  }
  for_each(call, call.inputs[0].elements(), 1, [&](std::int64_t i) { put(call, i, reals(call.inputs[0])[i]); });
}

/// y = x, rounded to the type of y. If y holds integers, fractions are cut off.
void cast(const KernelCall& call) {
  for_each(call, call.inputs[0].elements(), 1, [&](std::int64_t i) {
    double value = read_element(call.inputs[0], i);
    write_elements(call.outputs[0], i, {&value, 1});
  });
}

const RegisterKernel register_shift("reference", "shift", {.run = shift});
const RegisterKernel register_take_position("reference", "take_position", {.run = take_position});
const RegisterKernel register_cast("reference", "cast", {.run = cast});
const RegisterKernel register_copy("reference", "copy", {.run = copy});

}  // namespace
}  // namespace shardrun::device::reference
