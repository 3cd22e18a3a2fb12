#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/device/elements.h"
#include "core/device/overlap.h"
#include "core/device/reference/offsets.h"
#include "core/device/reference/views.h"

// Ops that copy elements of any type, and ops whose results depend only on positions.

namespace shardrun::device::reference {
namespace {

std::int64_t modulo(std::int64_t value, std::int64_t size) { return (value % size + size) % size; }

/// y[i] = x[i + offset] along one dimension, in global coordinates. Past its ends the array wraps ("periodic"), or has
/// `value` everywhere ("fixed"). If x is a shard with a halo, its origin says which elements it holds, and is negative
/// if the halo wraps at the front. If x lacks an element, this leaves that element of y unchanged with `missing`, and
/// throws Error{internal} without.
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

/// y = x. With `accumulate`, y += x.
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

/// y[j] = x[i]
void move(const TensorView& x, std::int64_t i, const TensorView& y, std::int64_t j) {
  if (graph::is_real(x.dtype)) {
    reals(y)[j] = reals(x)[i];
  } else {
    integers(y)[j] = integers(x)[i];
  }
}

/// y is x with its dimensions in another order: dimension d of y is dimension `order[d]` of x.
void transpose(const KernelCall& call) {
  const std::vector<std::int64_t> from = offsets(call.inputs[0], call.attributes.integers("order"));
  for (std::size_t i = 0; i < from.size(); ++i) {
    move(call.inputs[0], from[i], call.outputs[0], static_cast<std::int64_t>(i));
  }
}

/// The offset of an element in a part of this shape.
std::int64_t offset_in(const std::array<std::int64_t, max_rank>& shape, const std::array<std::int64_t, max_rank>& first,
                       const std::array<std::int64_t, max_rank>& index, std::uint32_t rank) {
  std::int64_t offset = 0;
  for (std::uint32_t d = 0; d < rank; ++d) {
    offset = offset * shape[d] + first[d] + index[d];
  }
  return offset;
}

void copy_overlap(const TensorView& x, const TensorView& y, const Overlap& overlap) {
  for (std::int64_t element = 0; element < overlap.elements(); ++element) {
    std::array<std::int64_t, max_rank> index = {};
    std::int64_t rest = element;
    for (std::uint32_t d = overlap.rank; d-- > 0;) {
      index[d] = rest % overlap.sizes[d];
      rest /= overlap.sizes[d];
    }
    move(x, offset_in(overlap.from_shape, overlap.from_first, index, overlap.rank), y,
         offset_in(overlap.to_shape, overlap.to_first, index, overlap.rank));
  }
}

/// y has the elements of x in the same order, with other dimensions.
void reshape(const KernelCall& call) {
  const Overlap all = reshaped_overlap(call.inputs[0], call.outputs[0]);
  all.require_all();
  copy_overlap(call.inputs[0], call.outputs[0], all);
}

std::uint32_t changed_dimension(const KernelCall& call) {
  return static_cast<std::uint32_t>(call.attributes.integer("dim"));
}

void slice(const KernelCall& call) {
  const Overlap all =
      shifted_overlap(call.inputs[0], call.outputs[0], changed_dimension(call), call.attributes.integer("begin"));
  all.require_all();
  copy_overlap(call.inputs[0], call.outputs[0], all);
}

void concatenate(const KernelCall& call) {
  const std::uint32_t dim = changed_dimension(call);
  std::int64_t place = 0;
  for (const TensorView& x : call.inputs) {
    copy_overlap(x, call.outputs[0], shifted_overlap(x, call.outputs[0], dim, -place));
    place += x.global[dim];
  }
}

void pad(const KernelCall& call) {
  const double value = call.attributes.real("value");
  for_each(call, call.outputs[0].elements(), 1, [&](std::int64_t i) { reals(call.outputs[0])[i] = value; });
  copy_overlap(
      call.inputs[0], call.outputs[0],
      shifted_overlap(call.inputs[0], call.outputs[0], changed_dimension(call), -call.attributes.integer("low")));
}

/// y[l, v] = 1 if index[l] is v, else 0. A shard's v begins at its origin.
void one_hot(const KernelCall& call) {
  const TensorView& y = call.outputs[0];
  const std::int64_t width = last_extent(y);
  for (std::int64_t l = 0; l < rows(y); ++l) {
    for (std::int64_t v = 0; v < width; ++v) {
      const bool chosen = integers(call.inputs[0])[l] == y.origin[y.rank - 1] + v;
      reals(y)[l * width + v] = chosen ? 1 : 0;
    }
  }
}

/// y[i] = i
void iota(const KernelCall& call) {
  const TensorView& y = call.outputs[0];
  for (std::int64_t i = 0; i < y.shape[0]; ++i) {
    double value = static_cast<double>(y.origin[0] + i);
    write_elements(y, i, {&value, 1});
  }
}

const RegisterKernel register_shift("reference", "shift", {.run = shift});
const RegisterKernel register_take_position("reference", "take_position", {.run = take_position});
const RegisterKernel register_cast("reference", "cast", {.run = cast});
const RegisterKernel register_copy("reference", "copy", {.run = copy});
const RegisterKernel register_transpose("reference", "transpose", {.run = transpose});
const RegisterKernel register_reshape("reference", "reshape", {.run = reshape});
const RegisterKernel register_slice("reference", "slice", {.run = slice});
const RegisterKernel register_concatenate("reference", "concatenate", {.run = concatenate});
const RegisterKernel register_pad("reference", "pad", {.run = pad});
const RegisterKernel register_one_hot("reference", "one_hot", {.run = one_hot});
const RegisterKernel register_iota("reference", "iota", {.run = iota});

}  // namespace
}  // namespace shardrun::device::reference
