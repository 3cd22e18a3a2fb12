#include <vector>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// A tensor [O, V, E], of which an index in V chooses rows. V is dimension `dim`, or 0 if the op has no such attribute.
struct Rows {
  Rows(const KernelCall& call, const TensorView& tensor)
      : dim(static_cast<std::uint32_t>(call.attributes.has("dim") ? call.attributes.integer("dim") : 0)),
        outer(extent(tensor, 0, dim)),
        held(tensor.shape[dim]),
        first(tensor.origin[dim]),
        width(extent(tensor, dim + 1, tensor.rank)) {}

  /// The row for a token, or -1 if another shard of V has it.
  [[nodiscard]] std::int64_t of(std::int32_t token) const {
    const std::int64_t row = token - first;
    return 0 <= row && row < held ? row : -1;
  }

  std::uint32_t dim;
  std::int64_t outer;
  std::int64_t held;
  std::int64_t first;
  std::int64_t width;
};

/// y[o, l, :] = table[o, token[l], :]; zeros if another shard holds the row. The sum over the shards is the whole
/// (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
/// tokens: [L]   table: [O, V, E]   y: [O, L, E]
void gather(const KernelCall& call) {
  const std::int32_t* tokens = integers(call.inputs[0]);
  const TensorView& table = call.inputs[1];
  const Rows rows(call, table);
  const std::int64_t length = call.inputs[0].elements();
  for_each(call, rows.outer * length, rows.width, [&](std::int64_t i) {
    const std::int64_t row = rows.of(tokens[i % length]);
    for (std::int64_t e = 0; e < rows.width; ++e) {
      const std::int64_t from = (i / length * rows.held + row) * rows.width + e;
      reals(call.outputs[0])[i * rows.width + e] = row < 0 ? 0 : reals(table)[from];
    }
  });
}

/// y[o, v, :] = sum of x[o, l, :] over the l with token[l] == v.
/// tokens: [L]   x: [O, L, E]   y: [O, V, E]
void scatter_add(const KernelCall& call) {
  const std::int32_t* tokens = integers(call.inputs[0]);
  const double* x = reals(call.inputs[1]);
  const Rows rows(call, call.outputs[0]);
  const std::int64_t length = call.inputs[0].elements();
  for_each(call, rows.outer * rows.held, length, [&](std::int64_t i) {
    const std::int64_t o = i / rows.held;
    std::vector<std::int64_t> places;
    for (std::int64_t l = 0; l < length; ++l) {
      if (rows.of(tokens[l]) == i % rows.held) {
        places.push_back(l);
      }
    }
    for (std::int64_t e = 0; e < rows.width; ++e) {
      double sum = 0;
      for (const std::int64_t l : places) {
        sum += x[(o * length + l) * rows.width + e];
      }
      put(call, i * rows.width + e, sum);
    }
  });
}

const RegisterKernel register_embedding("reference", "embedding", {.run = gather});
const RegisterKernel register_embedding_gradient("reference", "embedding_gradient", {.run = scatter_add});
const RegisterKernel register_gather("reference", "gather", {.run = gather});
const RegisterKernel register_scatter_add("reference", "scatter_add", {.run = scatter_add});

}  // namespace
}  // namespace shardrun::device::reference
