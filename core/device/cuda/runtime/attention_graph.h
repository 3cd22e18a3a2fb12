#pragma once

#include "core/device/cuda/runtime/cudnn_graph.h"

namespace shardrun::device::cuda {

/// Attention in bfloat16 without a mask tensor and without dropout. A head of keys and values serves
/// heads / key_heads heads of queries that follow each other.
struct FusedAttention {
  std::int64_t batch = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t heads = 0;  ///< of queries
  std::int64_t key_heads = 0;
  std::int64_t width = 0;
  bool causal = true;      ///< query i sees the keys 0 to i
  bool is_packed = false;  ///< q, k, v are [B, T, 3, H, D], and so are their gradients

  friend auto operator<=>(const FusedAttention&, const FusedAttention&) = default;
};

/// The tensors of the graphs, by their numbers. The scale and the score of keys that are not seen are by value.
struct AttentionNumbers {
  enum : std::int64_t { q = 1, k, v, out, log_sum_exp, scale, unseen, dout, dq, dk, dv, dout_out };
};

/// q, k, v -> out, log-sum-exp (natural logarithm) of the scaled scores.
[[nodiscard]] CudnnGraph attention_graph(const CudnnFunctions& library, const FusedAttention& of);
/// q, k, v, out, log-sum-exp, dout -> dq, dk, dv, and dout_out: the sums over a row of dout out, in float32.
[[nodiscard]] CudnnGraph attention_gradient_graph(const CudnnFunctions& library, const FusedAttention& of);

}  // namespace shardrun::device::cuda
