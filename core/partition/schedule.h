#pragma once

#include <cstdint>
#include <vector>

#include "core/partition/split_function.h"

namespace shardrun::partition {

/// One step of a function. All ranks of a stage execute the same steps.
struct Step {
  enum class Kind : std::uint8_t {
    compute,  ///< computes one node, which may be a slice
    start,    ///< starts the transitions `nodes`; an op with a halo exchange then computes what needs no halo
    wait,     ///< waits for the transitions `nodes`
  } kind = Kind::compute;
  std::vector<graph::NodeId> nodes;
};

using StepId = Id<struct StepTag>;

/// Orders the nodes of a function, and decides when its transfers start and when they are waited for.
///
/// A transition starts at its node and is waited for there, with four exceptions:
/// - The gathers of a unit (plan::TensorGather) start one unit ahead, before the first op of the preceding unit (Zhao
///   et al. 2023, arXiv:2304.11277, section 3.3.2).
/// - Consecutive halo exchanges start together.
/// - Reduced gradients and updated parameters, which no op reads, are transferred in buckets while the rest is
///   computed. A bucket takes transitions of the same kind and axis up to `bucket_bytes` on a rank, but at least one.
///   At most two buckets have buffers at a time. Sums over stages that have a place (launch_order.h) are not in
///   buckets.
/// - Sends to another stage overlap with computing. SplitFunction::under_way limits how many are in flight on a link.
[[nodiscard]] IdVector<StepId, Step> schedule(const SplitFunction& function, const mesh::Mesh& mesh,
                                              std::uint64_t bucket_bytes);

}  // namespace shardrun::partition
