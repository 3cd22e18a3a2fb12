#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/graph/op.h"

/// How attention or its gradient is computed by cuDNN: in parts of samples, or of the heads of a sample. It follows
/// from shapes and types alone, so memory is planned where there is no library and no GPU.
namespace shardrun::device::cuda {

/// Attention in bfloat16 without a mask tensor, a window and dropout, and log-sum-exp in float32. A head of keys and
/// values serves heads / key_heads heads of queries that follow each other.
/// q, out: [batch, queries, heads, width]   k, v: [batch, keys, key_heads, width]   log-sum-exp: [batch, heads,
/// queries]
struct FusedAttention {
  bool is_gradient = false;
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t width = 0;
  /// In memory each row has the heads of so many parts. If it is not 1, batch is 1.
  std::int64_t parts_of_heads = 1;
  bool is_causal = true;   ///< query i sees the keys 0 to i
  bool is_packed = false;  ///< q, k and v are [batch, rows, 3, heads, width], and so are their gradients

  auto operator<=>(const FusedAttention&) const = default;

  /// Elements from a row of q, or of k and v, to the next.
  [[nodiscard]] std::int64_t query_row() const { return out_row() * (is_packed ? 3 : 1); }
  [[nodiscard]] std::int64_t key_row() const { return key_heads * parts_of_heads * width * (is_packed ? 3 : 1); }
  [[nodiscard]] std::int64_t out_row() const { return heads * parts_of_heads * width; }
  /// Elements of log-sum-exp.
  [[nodiscard]] std::int64_t rows() const { return batch * heads * queries; }
};

/// "attention bf16[8, 1024, 12, 64], 1024 keys of 12 heads, causal", for messages.
[[nodiscard]] std::string text_of(const FusedAttention& attention);

struct AttentionSteps {
  FusedAttention part;
  std::int64_t parts_of_batch = 1;
  float scale = 0;  ///< the factor of the scores
  // In the scratch, from its first multiple of `alignment`: the sums over the rows of dout out, then the workspace.
  std::size_t sums_bytes = 0;
  std::size_t workspace_bytes = 0;
  std::size_t scratch_bytes = 0;

  static constexpr std::size_t alignment = 256;
};

/// Of a part: the gradient's workspace for its probabilities. See docs/gpu.md.
inline constexpr std::int64_t most_attention_bytes = std::int64_t{256} << 20;
/// Of a part of one head of keys, which cannot be smaller.
inline constexpr std::int64_t most_bytes_of_head = std::int64_t{1} << 30;

/// Whether the op is `attention`, `scaled_dot_product_attention`, or a gradient of one.
[[nodiscard]] bool is_attention(std::string_view op);

/// Nothing: it is for our own kernels, because cuDNN does not take its types, its width, its attributes or parts of
/// groups, or a head of keys needs more workspace for the gradient than `most_bytes_of_head`. REQUIRES:
/// is_attention(op).
[[nodiscard]] std::optional<AttentionSteps> attention_steps(std::string_view op, const graph::OpShape& shape,
                                                            std::int64_t most_bytes = most_attention_bytes);

}  // namespace shardrun::device::cuda
