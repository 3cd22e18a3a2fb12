#include <shardrun/sdk/transport/half.hpp>

#include <algorithm>

#include "core/device/cpu/block_product.h"
#include "core/device/cpu/blocks.h"
#include "core/device/device.h"
#include "core/device/threads.h"
#include "core/graph/stored_weights.h"

// The kernels of the ops of core/graph/ops/blocks.cpp: products and look-ups of int8 weights in blocks.

namespace shardrun::device::cpu {
namespace {

using graph::block_elements;

/// The sizes of y[m, n] = x[m, k] wᵀ. If x or y is bfloat16, the scratch begins with a float32 copy of x or y, of these
/// bytes. The rest of the scratch is for the product.
struct Sizes {
  Sizes(const graph::Attributes& attributes, const std::vector<graph::TensorType>& inputs,
        const graph::TensorType& output) {
    const std::size_t contract = attributes.integers("groups").size();
    const graph::TensorType& w = inputs[1];
    for (std::size_t d = 0; d < w.shape.size(); ++d) {
      (d + contract < w.shape.size() ? n : k) *= w.shape[d];
    }
    for (std::size_t d = 0; d + contract < inputs[0].shape.size(); ++d) {
      m *= inputs[0].shape[d];
    }
    x_bytes = inputs[0].dtype == graph::DType::bf16 ? bytes_of(m * k) : 0;
    y_bytes = output.dtype == graph::DType::bf16 ? bytes_of(m * n) : 0;
  }

  [[nodiscard]] static std::size_t bytes_of(std::int64_t floats) {
    return (static_cast<std::size_t>(floats) * sizeof(float) + 63) / 64 * 64;
  }

  std::int64_t m = 1;
  std::int64_t n = 1;
  std::int64_t k = 1;
  std::size_t x_bytes;
  std::size_t y_bytes;
};

std::size_t scratch_bytes(const graph::OpShape& shape, int) {
  const Sizes sizes(shape.attributes, shape.inputs, shape.outputs[0]);
  return sizes.x_bytes + sizes.y_bytes + block_product_scratch(sizes.m, sizes.k);
}

std::shared_ptr<void> prepare(const graph::OpShape& shape) {
  return std::make_shared<Sizes>(shape.attributes, shape.inputs, shape.outputs[0]);
}

void block_matmul(const KernelCall& call) {
  const Sizes& sizes = *static_cast<const Sizes*>(call.prepared);
  std::byte* const scratch = call.scratch.data();
  auto* x = static_cast<float*>(call.inputs[0].data);
  auto* y = static_cast<float*>(call.outputs[0].data);
  if (sizes.x_bytes > 0) {
    x = reinterpret_cast<float*>(scratch);
    block_loops().widen(call.inputs[0].data, false, sizes.k, x, sizes.k, sizes.m, sizes.k);
  }
  if (sizes.y_bytes > 0) {
    y = reinterpret_cast<float*>(scratch + sizes.x_bytes);
  }
  multiply_blocks({.m = sizes.m,
                   .n = sizes.n,
                   .k = sizes.k,
                   .a = x,
                   .a_stride = sizes.k,
                   .w = static_cast<const std::int8_t*>(call.inputs[1].data),
                   .scales = static_cast<const std::uint16_t*>(call.inputs[2].data),
                   .c = y,
                   .c_stride = sizes.n},
                  call.threads, scratch + sizes.x_bytes + sizes.y_bytes);
  if (sizes.y_bytes > 0) {
    block_loops().narrow(y, sizes.n, call.outputs[0].data, sizes.n, sizes.m, sizes.n, false);
  }
}

/// tokens: [L]   w: [V, E]   y: [L, E], the rows of w times their scales; zero for tokens of other shards
void block_embedding(const KernelCall& call) {
  const TensorView& w = call.inputs[1];
  const TensorView& scales = call.inputs[2];
  const TensorView& y = call.outputs[0];
  const auto* const tokens = static_cast<const std::int32_t*>(call.inputs[0].data);
  const std::int64_t width = w.shape[1];
  call.threads.split(call.inputs[0].elements(), 16384 / (width + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t l = begin; l < end; ++l) {
      const std::int64_t row = tokens[l] - w.origin[0];
      const bool is_held = row >= 0 && row < w.shape[0];
      for (std::int64_t e = 0; e < width;) {
        const std::int64_t block = (w.origin[1] + e) / block_elements;
        const std::int64_t count = std::min((block + 1) * block_elements - w.origin[1], width) - e;
        float numbers[block_elements] = {};
        if (is_held) {
          const auto* const of_row =
              static_cast<const std::uint16_t*>(scales.data) + row * scales.shape[1] - scales.origin[1];
          const float scale = sdk::widen(sdk::Half{of_row[block]});
          const auto* const from = static_cast<const std::int8_t*>(w.data) + row * width + e;
          std::transform(from, from + count, numbers, [&](std::int8_t q) { return scale * static_cast<float>(q); });
        }
        std::byte* const to = y.address_of(l * width + e);
        if (y.dtype == graph::DType::bf16) {
          block_loops().narrow(numbers, count, to, count, 1, count, false);
        } else {
          std::copy_n(numbers, count, reinterpret_cast<float*>(to));
        }
        e += count;
      }
    }
  });
}

const RegisterKernel register_block_matmul("cpu", "block_matmul", {block_matmul, scratch_bytes, prepare});
const RegisterKernel register_block_embedding("cpu", "block_embedding", {.run = block_embedding});

}  // namespace
}  // namespace shardrun::device::cpu
