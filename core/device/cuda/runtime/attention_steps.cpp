#include "core/device/cuda/runtime/attention_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/memory/layout.h"

namespace shardrun::device::cuda {
namespace {

using graph::DType;

constexpr std::string_view packed_op = "attention";
constexpr std::string_view packed_gradient = "attention_gradient";
constexpr std::string_view separate_op = "scaled_dot_product_attention";
constexpr std::string_view separate_gradient = "scaled_dot_product_attention_gradient";

std::int64_t up_to(std::int64_t value, std::int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Bytes of workspace that engines need besides those of large_workspace_of().
constexpr std::int64_t other_workspace = 4096;

/// Bytes of workspace for large tensors. For the gradient, engines store the probabilities of whole tiles in bfloat16,
/// so that they can sum each dq in one order. If there are groups, they also store dk and dv of all heads of queries.
std::int64_t large_workspace_of(const FusedAttention& of) {
  if (!of.is_gradient) {
    return 0;
  }
  constexpr std::int64_t tile_of_queries = 64;
  constexpr std::int64_t tile_of_keys = 128;
  const std::int64_t heads = of.batch * of.heads * 2;
  const std::int64_t probabilities = heads * up_to(of.queries, tile_of_queries) * up_to(of.keys, tile_of_keys);
  return probabilities + (of.heads == of.key_heads ? 0 : 2 * heads * of.keys * of.width);
}

bool has_types(const graph::OpShape& shape, std::size_t log_sum_exp) {
  const auto is_bfloat = [](const graph::TensorType& type) { return type.dtype == DType::bf16; };
  std::size_t floats = 0;
  for (const auto& types : {shape.inputs, shape.outputs}) {
    floats += types.size() - static_cast<std::size_t>(std::ranges::count_if(types, is_bfloat));
  }
  const graph::TensorType& statistics =
      log_sum_exp < shape.inputs.size() ? shape.inputs[log_sum_exp] : shape.outputs[1];
  return floats == 1 && statistics.dtype == DType::f32;
}

/// The whole op as attention that cuDNN supports. Nothing if the op has a mask tensor, a window, dropout or other
/// types, or if the shard has only a part of a group of heads.
std::optional<FusedAttention> whole_of(std::string_view op, const graph::OpShape& shape) {
  if (shape.attributes.real("dropout") != 0) {
    return std::nullopt;
  }
  const auto& q = shape.inputs[0].shape;
  FusedAttention of{.is_gradient = op == packed_gradient || op == separate_gradient, .batch = q[0], .queries = q[1]};
  if (op == packed_op || op == packed_gradient) {
    of.keys = q[1];
    of.heads = of.key_heads = q[3];
    of.is_packed = true;
  } else {
    if (shape.attributes.integer("window") != 0 || shape.inputs.size() > (of.is_gradient ? 6 : 3)) {
      return std::nullopt;
    }
    of.keys = shape.inputs[1].shape[1];
    of.key_heads = shape.inputs[1].shape[2];
    of.heads = shape.attributes.has("group") ? q[2] : q[2] * q[3];
    if (shape.attributes.has("group") && of.heads != of.key_heads * shape.attributes.integer("group")) {
      return std::nullopt;  // a shard whose groups lack heads
    }
    of.is_causal = shape.attributes.integer("causal") == 1;
  }
  of.width = q.back();
  const std::size_t log_sum_exp = !of.is_gradient ? 100 : of.is_packed ? 2 : 4;
  return has_types(shape, log_sum_exp) ? std::optional(of) : std::nullopt;
}

}  // namespace

std::string text_of(const FusedAttention& of) {
  return fmt::format("attention{} bf16[{}, {}, {}, {}], {} keys of {} heads{}{}", of.is_gradient ? "'s gradient" : "",
                     of.batch, of.queries, of.heads, of.width, of.keys, of.key_heads, of.is_causal ? ", causal" : "",
                     of.is_packed ? ", packed" : "");
}

bool is_attention(std::string_view op) {
  return op == packed_op || op == packed_gradient || op == separate_op || op == separate_gradient;
}

std::optional<AttentionSteps> attention_steps(std::string_view op, const graph::OpShape& shape,
                                              std::int64_t most_bytes) {
  constexpr std::int64_t widest = 256;
  const std::optional<FusedAttention> whole = whole_of(op, shape);
  if (!whole || whole->width % 8 != 0 || whole->width > widest ||
      std::min({whole->rows(), whole->keys, whole->width}) == 0) {
    return std::nullopt;
  }
  // Uses the fewest equal parts that fit.
  AttentionSteps steps{.part = *whole};
  FusedAttention& part = steps.part;
  FusedAttention smallest = *whole;
  smallest.batch = smallest.key_heads = 1;
  smallest.heads = whole->heads / whole->key_heads;
  const std::int64_t least_bytes = large_workspace_of(smallest);
  if (least_bytes > most_bytes_of_head) {
    return std::nullopt;
  }
  const auto fits = [&] { return large_workspace_of(part) <= std::max(most_bytes, least_bytes); };
  for (std::int64_t parts = 1; !fits() && parts <= whole->batch; ++parts) {
    if (whole->batch % parts == 0) {
      part.batch = whole->batch / parts;
    }
  }
  for (std::int64_t parts = 1; !fits() && parts <= whole->key_heads; ++parts) {
    if (whole->key_heads % parts == 0) {
      part.parts_of_heads = parts;
      part.key_heads = whole->key_heads / parts;
      part.heads = whole->heads / parts;
    }
  }
  steps.parts_of_batch = whole->batch / part.batch;
  const double scale = whole->is_packed ? 0 : shape.attributes.real("scale");
  steps.scale = scale != 0 ? static_cast<float>(scale) : 1.0F / std::sqrt(static_cast<float>(whole->width));
  const auto aligned = [](std::int64_t bytes) {
    return memory::align_up(static_cast<std::uint64_t>(bytes), AttentionSteps::alignment);
  };
  steps.sums_bytes = part.is_gradient ? aligned(part.rows() * static_cast<std::int64_t>(sizeof(float))) : 0;
  steps.workspace_bytes = aligned(large_workspace_of(part) + other_workspace);
  steps.scratch_bytes = steps.sums_bytes + steps.workspace_bytes + AttentionSteps::alignment - memory::alignment;
  return steps;
}

}  // namespace shardrun::device::cuda
