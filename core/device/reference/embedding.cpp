#include <vector>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// The row of `table` for a token, or -1 if another shard of the vocabulary has it.
std::int64_t row_of(const TensorView& table, std::int32_t token) {
  const std::int64_t row = token - table.origin[0];
  return 0 <= row && row < table.shape[0] ? row : -1;
}

/// y[l, :] = table[token[l], :], zeros for a row held elsewhere: summing over the shards gives the whole
/// (Shoeybi et al. 2019, arXiv:1909.08053, section 3).
/// tokens: [L]   table: [V, E]   y: [L, E]
void embedding(const KernelCall& call) {
  const std::int32_t* tokens = integers(call.inputs[0]);
  const TensorView& table = call.inputs[1];
  const std::int64_t width = table.shape[1];
  double* y = reals(call.outputs[0]);
  for_each(call, call.inputs[0].elements(), width, [&](std::int64_t l) {
    const std::int64_t row = row_of(table, tokens[l]);
    for (std::int64_t e = 0; e < width; ++e) {
      y[l * width + e] = row < 0 ? 0 : reals(table)[row * width + e];
    }
  });
}

/// dtable[v, :] = sum of dy[l, :] over the l with token[l] == v.
/// tokens: [L]   dy: [L, E]   dtable: [V, E]
void embedding_gradient(const KernelCall& call) {
  const std::int32_t* tokens = integers(call.inputs[0]);
  const double* dy = reals(call.inputs[1]);
  const TensorView& dtable = call.outputs[0];
  const std::int64_t width = dtable.shape[1];
  const std::int64_t length = call.inputs[0].elements();
  for_each(call, dtable.shape[0], length, [&](std::int64_t v) {
    std::vector<std::int64_t> places;
    for (std::int64_t l = 0; l < length; ++l) {
      if (row_of(dtable, tokens[l]) == v) {
        places.push_back(l);
      }
    }
    for (std::int64_t e = 0; e < width; ++e) {
      double sum = 0;
      for (const std::int64_t l : places) {
        sum += dy[l * width + e];
      }
      put(call, v * width + e, sum);
    }
  });
}

const RegisterKernel register_embedding("reference", "embedding", {.run = embedding});
const RegisterKernel register_embedding_gradient("reference", "embedding_gradient", {.run = embedding_gradient});

}  // namespace
}  // namespace shardrun::device::reference
