#include <cmath>
#include <limits>
#include <vector>

#include "core/device/reference/views.h"
#include "core/graph/stored_weights.h"

namespace shardrun::device::reference {
namespace {

using graph::block_elements;

const std::int8_t* bytes(const TensorView& tensor) { return static_cast<const std::int8_t*>(tensor.data); }

/// Activations that are rounded in blocks. A row has `width` elements, and each of its blocks has a scale.
struct RoundedRows {
  RoundedRows(const KernelCall& call, const double* x, std::int64_t count, std::int64_t width)
      : blocks((width + block_elements - 1) / block_elements),
        scales(static_cast<std::size_t>(count * blocks)),
        elements(static_cast<std::size_t>(count * width)) {
    for_each(call, count * blocks, 3 * block_elements, [&](std::int64_t i) {
      const std::int64_t first = i % blocks * block_elements;
      const std::int64_t begin = i / blocks * width + first;
      const std::int64_t end = begin + std::min(block_elements, width - first);
      float most = 0;
      for (std::int64_t e = begin; e < end; ++e) {
        most = std::max(most, std::abs(static_cast<float>(x[e])));
      }
      const float scale = most / 127;
      if (scale >= std::numeric_limits<float>::min()) {
        scales[static_cast<std::size_t>(i)] = scale;
        for (std::int64_t e = begin; e < end; ++e) {
          elements[static_cast<std::size_t>(e)] = std::nearbyint(static_cast<float>(x[e]) / scale);
        }
      }
    });
  }

  std::int64_t blocks;
  std::vector<double> scales;    ///< [rows, blocks]
  std::vector<double> elements;  ///< [rows, width]; the rounded x / scale, zero if the scale is
};

/// y[l, n] = sum over blocks b of xscale[l, b] scale[n, b] (sum over b's elements of xq[l, e] w[n, e]), where the
/// activations of a block are rounded to multiples xq of xscale = max|x| / 127.
/// x: [L, K...]   w: [N..., K...], int8   scale: [N..., blocks of K...]   y: [L, N...]
void block_matmul(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& w = call.inputs[1];
  const auto contract = static_cast<std::uint32_t>(call.attributes.integers("groups").size());
  const std::int64_t ls = extent(x, 0, x.rank - contract);
  const std::int64_t ks = extent(x, x.rank - contract, x.rank);
  const std::int64_t ns = extent(w, 0, w.rank - contract);
  const RoundedRows rows(call, reals(x), ls, ks);
  for_each(call, ls * ns, 2 * ks, [&](std::int64_t i) {
    const std::int64_t l = i / ns;
    const std::int64_t n = i % ns;
    double sum = 0;
    for (std::int64_t b = 0; b < rows.blocks; ++b) {
      double exact = 0;
      for (std::int64_t e = b * block_elements; e < std::min(ks, (b + 1) * block_elements); ++e) {
        exact += rows.elements[static_cast<std::size_t>(l * ks + e)] * bytes(w)[n * ks + e];
      }
      sum += rows.scales[static_cast<std::size_t>(l * rows.blocks + b)] * reals(call.inputs[2])[n * rows.blocks + b] *
             exact;
    }
    reals(call.outputs[0])[i] = sum;
  });
}

/// y[l, e] = scale[token[l], e / 32] w[token[l], e]; zeros if another shard holds the row.
/// tokens: [L]   w: [V, E], int8   scale: [V, blocks of E]   y: [L, E]
void block_embedding(const KernelCall& call) {
  const TensorView& w = call.inputs[1];
  const TensorView& scales = call.inputs[2];
  const std::int64_t width = w.shape[1];
  for_each(call, call.inputs[0].elements(), width, [&](std::int64_t l) {
    const std::int64_t row = integers(call.inputs[0])[l] - w.origin[0];
    const bool is_held = row >= 0 && row < w.shape[0];
    for (std::int64_t e = 0; e < width; ++e) {
      const std::int64_t block = (w.origin[1] + e) / block_elements - scales.origin[1];
      reals(call.outputs[0])[l * width + e] =
          is_held ? reals(scales)[row * scales.shape[1] + block] * bytes(w)[row * width + e] : 0;
    }
  });
}

const RegisterKernel register_block_matmul("reference", "block_matmul", {.run = block_matmul});
const RegisterKernel register_block_embedding("reference", "block_embedding", {.run = block_embedding});

}  // namespace
}  // namespace shardrun::device::reference
