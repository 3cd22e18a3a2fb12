#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/graph/op.h"

/// cuDNN computes attention or its gradient in parts, of some samples or of some heads of one sample. Shapes and types
/// alone decide the parts, so memory can be planned without the library and without a GPU.
namespace shardrun::device::cuda {

/// Attention in bfloat16 without mask tensor, window and dropout, with log-sum-exp in float32. Each head of keys and
/// values serves heads / key_heads consecutive heads of queries.
/// q, out: [batch, queries, heads, width]   k, v: [batch, keys, key_heads, width]
/// log-sum-exp: [batch, heads, queries]
struct FusedAttention {
  bool is_gradient = false;
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t width = 0;
  /// The number of parts into which the heads are divided. A row in memory has the heads of all parts. If there are
  /// several parts, batch is 1.
  std::int64_t parts_of_heads = 1;
  bool is_causal = true;   ///< query i sees the keys 0 to i
  bool is_packed = false;  ///< q, k and v are [batch, rows, 3, heads, width], and so are their gradients

  auto operator<=>(const FusedAttention&) const = default;

  /// Elements from one row to the next: of q, of k and v, and of out.
  [[nodiscard]] std::int64_t query_row() const { return out_row() * (is_packed ? 3 : 1); }
  [[nodiscard]] std::int64_t key_row() const { return key_heads * parts_of_heads * width * (is_packed ? 3 : 1); }
  [[nodiscard]] std::int64_t out_row() const { return heads * parts_of_heads * width; }
  /// The number of elements of log-sum-exp.
  [[nodiscard]] std::int64_t rows() const { return batch * heads * queries; }
};

/// A text for messages: "attention bf16[8, 1024, 12, 64], 1024 keys of 12 heads, causal".
[[nodiscard]] std::string text_of(const FusedAttention& attention);

struct AttentionSteps {
  FusedAttention part;
  std::int64_t parts_of_batch = 1;
  float scale = 0;  ///< the factor of scores
  // The scratch is used from its first multiple of `alignment` on: the row sums of dout * out, then the workspace.
  std::size_t sums_bytes = 0;
  std::size_t workspace_bytes = 0;
  std::size_t scratch_bytes = 0;

  static constexpr std::size_t alignment = 256;
};

/// Limit for one part: bytes of the gradient's workspace for probabilities and, with groups, dk and dv (docs/gpu.md).
inline constexpr std::int64_t most_attention_bytes = std::int64_t{256} << 20;
/// The same limit for a part of one head of keys, which cannot be divided further.
inline constexpr std::int64_t most_bytes_of_head = std::int64_t{1} << 30;

/// Whether the op is `attention`, `scaled_dot_product_attention`, or a gradient of one.
[[nodiscard]] bool is_attention(std::string_view op);

/// Returns nothing if our own kernels must compute the op: a tensor is empty, cuDNN does not support the op's types,
/// width, attributes or parts of groups, or the gradient of one head of keys needs more workspace than
/// `most_bytes_of_head`. REQUIRES: is_attention(op).
[[nodiscard]] std::optional<AttentionSteps> attention_steps(std::string_view op, const graph::OpShape& shape,
                                                            std::int64_t most_bytes = most_attention_bytes);

}  // namespace shardrun::device::cuda
