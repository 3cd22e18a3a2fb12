#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// tokens: [L]   table: [V, E]   y: [L, E]; rows of tokens that this shard of the vocabulary lacks are zero
void embedding(const KernelCall& call) {
  const std::int32_t* tokens = integers(call.inputs[0]);
  const float* table = floats(call.inputs[1]);
  float* y = floats(call.outputs[0]);
  const std::int64_t held = call.inputs[1].shape[0];
  const std::int64_t first = call.inputs[1].origin[0];
  const std::int64_t width = call.inputs[1].shape[1];
  const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
  call.threads.split(call.inputs[0].elements(), row_grain(width), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = begin; l < end; ++l) {
      const std::int64_t row = tokens[l] - first;
      if (row >= 0 && row < held) {
        __builtin_memcpy(y + l * width, table + row * width, bytes);
      } else {
        __builtin_memset(y + l * width, 0, bytes);
      }
    }
  });
}

void clear(const KernelCall& call) {
  float* table = floats(call.outputs[0]);
  call.threads.split(call.outputs[0].elements(), grain, [=](std::int64_t begin, std::int64_t end) {
    __builtin_memset(table + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

/// tokens: [L]   dy: [L, E]   dtable: [V, E] (+)= the rows of dy, each at its token's row. Threads share the columns,
/// so that each row is summed in the order of the tokens.
void embedding_gradient(const KernelCall& call) {
  if (!call.accumulate) {
    clear(call);
  }
  const std::int32_t* tokens = integers(call.inputs[0]);
  const float* dy = floats(call.inputs[1]);
  float* table = floats(call.outputs[0]);
  const std::int64_t count = call.inputs[0].elements();
  const std::int64_t held = call.outputs[0].shape[0];
  const std::int64_t first = call.outputs[0].origin[0];
  const std::int64_t width = call.outputs[0].shape[1];
  const std::int64_t share = (row_grain(count) + 15) / 16 * 16;
  call.threads.split(width, share, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = 0; l < count; ++l) {
      const std::int64_t row = tokens[l] - first;
      if (row < 0 || row >= held) {
        continue;
      }
      const float* from = dy + l * width;
      float* to = table + row * width;
      vectors(begin, end, [=](auto at) { store(to, at, load(to, at) + load(from, at)); });
    }
  });
}

/// x: [B, T, E]   y: [B, E] = x[:, position, :]
void take_position(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::int64_t width = x.shape[2];
  for (std::int64_t b = 0; b < x.shape[0]; ++b) {
    __builtin_memcpy(floats(call.outputs[0]) + b * width, floats(x) + (b * x.shape[1] + call.scalars.position) * width,
                     static_cast<std::size_t>(width) * sizeof(float));
  }
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(embedding, {"embedding", {.run = embedding}}, {"embedding_gradient", {.run = embedding_gradient}},
                 {"take_position", {.run = take_position}})
