#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "core/partition/shard.h"
#include "core/plan/hook.h"

namespace shardrun::partition {

/// A strategy's hook for a bucket on one rank.
struct BucketHook {
  std::uint32_t group = 0;  ///< index in Programs::hook_groups
  plan::HookPlan plan;
};

/// States that are finalized together by the same collectives. Their buffers are contiguous.
struct Bucket {
  std::vector<graph::StateId> states;             ///< in the order of their buffers
  std::vector<Transition> steps;                  ///< the first state's; other states may have other dimensions
  std::optional<BucketHook> hook = std::nullopt;  ///< set if a step is a hook and this rank has elements
};

/// Two tensors with equal keys can be in one group of a hook: ranks that hold the same part of one hold the same part
/// of the other. The key has the mesh axes that split the tensor, and those over which it varies.
struct GroupKey {
  std::set<mesh::AxisId> split;
  std::vector<mesh::AxisId> varying;

  bool operator==(const GroupKey&) const = default;
};

[[nodiscard]] GroupKey group_key(const mesh::Placement& placement);

/// Groups the partial states that a function adds to into buckets, in the order of their last contributions.
///  - A bucket takes states up to `bytes` together, but at least one. `state_bytes`: the bytes of each state.
///  - Metrics are placed after the last contribution to any metric: stages of a pipeline complete them at different
///    nodes, but finalize them together. Metrics with the same collectives share one bucket of any size.
/// `finalizes`: whether this rank takes part in the finalization of a state.
[[nodiscard]] std::vector<Bucket> buckets_of(const graph::Graph& graph, const SplitFunction& function,
                                             const IdVector<graph::StateId, Finalization>& finalizations,
                                             const std::function<bool(graph::StateId)>& finalizes,
                                             const IdVector<graph::StateId, std::uint64_t>& state_bytes,
                                             std::uint64_t bytes);

}  // namespace shardrun::partition
