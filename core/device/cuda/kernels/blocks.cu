#include "core/device/cuda/launch.h"
#include "core/device/cuda/values.h"

#include <shardrun/sdk/transport/half.hpp>

// These kernels multiply by int8 weights in blocks, and read rows of tables of them (core/graph/ops/blocks.cpp). A
// thread computes one element of the result.

namespace shardrun::device::cuda {
namespace {

constexpr std::int64_t block_width = 32;

struct BlockWeights {
  explicit BlockWeights(const KernelCall& call)
      : q(static_cast<const std::int8_t*>(call.inputs[1].data)),
        scales(static_cast<const std::uint16_t*>(call.inputs[2].data)) {}

  [[nodiscard]] SHARDRUN_ON_DEVICE float scale(std::int64_t i) const { return sdk::widen(sdk::Half{scales[i]}); }

  const std::int8_t* q;
  const std::uint16_t* scales;
};

/// y[l, n] = the sum over blocks of (x's scale) (w's scale) (the exact sum of products of their integers). Each thread
/// rounds its row of x itself.
struct BlockProducts {
  Reals x;
  BlockWeights w;
  Reals y;
  std::int64_t n;
  std::int64_t k;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = i / n;
    const std::int64_t column = i - row * n;
    const std::int64_t blocks = (k + block_width - 1) / block_width;
    float sum = 0;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t first = b * block_width;
      const std::int64_t end = first + block_width < k ? first + block_width : k;
      float most = 0;
      for (std::int64_t e = first; e < end; ++e) {
        most = fmaxf(most, fabsf(x.get(row * k + e)));
      }
      const float scale = most / 127;
      if (scale < 0x1p-126F) {
        continue;
      }
      int exact = 0;
      for (std::int64_t e = first; e < end; ++e) {
        exact += static_cast<int>(rintf(x.get(row * k + e) / scale)) * w.q[column * k + e];
      }
      sum = fmaf(scale * w.scale(column * blocks + b), static_cast<float>(exact), sum);
    }
    y.set(i, sum);
  }
};

void block_matmul(const KernelCall& call) {
  const auto contract = static_cast<std::uint32_t>(call.attributes.integers("groups").size());
  const TensorView& w = call.inputs[1];
  const std::int64_t n = extent(w, 0, w.rank - contract);
  for_each(call, call.outputs[0].elements(),
           BlockProducts{reals(call.inputs[0]), BlockWeights(call), reals(call.outputs[0]), n,
                         extent(w, w.rank - contract, w.rank)});
}

/// y[l, e] = scale * w[row of token l, e]; 0 if another shard holds the row.
struct BlockRows {
  const std::int32_t* tokens;
  BlockWeights w;
  Reals y;
  std::int64_t held;
  std::int64_t first;
  std::int64_t width;
  std::int64_t first_element;
  std::int64_t blocks;
  std::int64_t first_block;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t l = i / width;
    const std::int64_t e = i - l * width;
    const std::int64_t row = tokens[l] - first;
    const bool is_held = row >= 0 && row < held;
    const std::int64_t block = row * blocks + (first_element + e) / block_width - first_block;
    y.set(i, is_held ? w.scale(block) * static_cast<float>(w.q[row * width + e]) : 0);
  }
};

void block_embedding(const KernelCall& call) {
  const TensorView& w = call.inputs[1];
  const TensorView& scales = call.inputs[2];
  for_each(call, call.outputs[0].elements(),
           BlockRows{.tokens = integers(call.inputs[0]),
                     .w = BlockWeights(call),
                     .y = reals(call.outputs[0]),
                     .held = w.shape[0],
                     .first = w.origin[0],
                     .width = w.shape[1],
                     .first_element = w.origin[1],
                     .blocks = scales.shape[1],
                     .first_block = scales.origin[1]});
}

const AddKernels weights_in_blocks({{"block_matmul", {.run = block_matmul}},
                                    {"block_embedding", {.run = block_embedding}}});

}  // namespace
}  // namespace shardrun::device::cuda
