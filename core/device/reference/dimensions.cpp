#include "core/device/elements.h"
#include "core/device/reference/offsets.h"
#include "core/device/reference/views.h"

// Ops that move elements of any type, and those that make elements of positions.

namespace shardrun::device::reference {
namespace {

/// y[j] = x[i]
void move(const TensorView& x, std::int64_t i, const TensorView& y, std::int64_t j) {
  if (graph::is_real(x.dtype)) {
    reals(y)[j] = reals(x)[i];
  } else {
    integers(y)[j] = integers(x)[i];
  }
}

/// y[…] has dimension `order[d]` of x as its dimension d.
void transpose(const KernelCall& call) {
  const std::vector<std::int64_t> from = offsets(call.inputs[0], call.attributes.integers("order"));
  for (std::size_t i = 0; i < from.size(); ++i) {
    move(call.inputs[0], from[i], call.outputs[0], static_cast<std::int64_t>(i));
  }
}

/// The same elements in the same order.
void reshape(const KernelCall& call) {
  for (std::int64_t i = 0; i < call.inputs[0].elements(); ++i) {
    move(call.inputs[0], i, call.outputs[0], i);
  }
}

/// y[o, place + i, k] = x[o, first + i, k] for i < count, i along dimension `dim`.
void copy_indices(const KernelCall& call, const TensorView& x, std::int64_t first, std::int64_t place,
                  std::int64_t count) {
  const auto dim = static_cast<std::uint32_t>(call.attributes.integer("dim"));
  const TensorView& y = call.outputs[0];
  const std::int64_t inner = extent(x, dim + 1, x.rank);
  for (std::int64_t o = 0; o < extent(x, 0, dim); ++o) {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t k = 0; k < inner; ++k) {
        move(x, (o * x.shape[dim] + first + i) * inner + k, y, (o * y.shape[dim] + place + i) * inner + k);
      }
    }
  }
}

void slice(const KernelCall& call) {
  const std::int64_t begin = call.attributes.integer("begin");
  copy_indices(call, call.inputs[0], begin, 0, call.attributes.integer("end") - begin);
}

void concatenate(const KernelCall& call) {
  std::int64_t place = 0;
  for (const TensorView& x : call.inputs) {
    const std::int64_t size = x.shape[static_cast<std::size_t>(call.attributes.integer("dim"))];
    copy_indices(call, x, 0, place, size);
    place += size;
  }
}

void pad(const KernelCall& call) {
  const double value = call.attributes.real("value");
  for_each(call, call.outputs[0].elements(), 1, [&](std::int64_t i) { reals(call.outputs[0])[i] = value; });
  const std::int64_t size = call.inputs[0].shape[static_cast<std::size_t>(call.attributes.integer("dim"))];
  copy_indices(call, call.inputs[0], 0, call.attributes.integer("low"), size);
}

/// y[l, v] = 1 if index[l] is v, else 0. A shard of v begins at its origin.
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

const RegisterKernel register_transpose("reference", "transpose", {.run = transpose});
const RegisterKernel register_reshape("reference", "reshape", {.run = reshape});
const RegisterKernel register_slice("reference", "slice", {.run = slice});
const RegisterKernel register_concatenate("reference", "concatenate", {.run = concatenate});
const RegisterKernel register_pad("reference", "pad", {.run = pad});
const RegisterKernel register_one_hot("reference", "one_hot", {.run = one_hot});
const RegisterKernel register_iota("reference", "iota", {.run = iota});

}  // namespace
}  // namespace shardrun::device::reference
