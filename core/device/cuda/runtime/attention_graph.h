#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device/cuda/runtime/attention_steps.h"
#include "core/device/cuda/runtime/cudnn_graph.h"

namespace shardrun::device::cuda {

/// The numbers of the graph's tensors. The scale, the score of unseen keys and the constant 1 are passed by value.
struct AttentionNumbers {
  enum : std::int64_t { q = 1, k, v, out, log_sum_exp, scale, unseen, dout, dq, dk, dv, sums, one, dq_sums };
};

/// The order in which the gradient adds up the parts of dq.
enum class AttentionOrder : std::uint8_t {
  fixed,  ///< each dq is written once
  any,    ///< blocks add to float32 sums as they come: faster, and its bits differ from run to run
};

/// Finds the first plan, in the order of cuDNN's heuristics, that needs no more workspace than allowed and, unless
/// `order` is any, adds up in a fixed order. Null: there is none. Throws CudnnError.
/// Attention: q, k, v -> out, log-sum-exp (natural logarithm) of the scaled scores.
/// Gradient: q, k, v, out, log-sum-exp, dout -> dq, dk, dv, and the row sums of dout * out in float32. If `order` is
/// any, also dq_sums: [batch, heads, queries, width] in float32, which need not be 0 before.
[[nodiscard]] std::shared_ptr<const CudnnPlan> find_attention_plan(const CudnnTarget& target,
                                                                   const FusedAttention& attention,
                                                                   std::size_t workspace_bytes,
                                                                   AttentionOrder order = AttentionOrder::fixed,
                                                                   CudnnGpu gpu = CudnnGpu::by_properties);

}  // namespace shardrun::device::cuda
