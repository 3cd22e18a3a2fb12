#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "core/partition/shard.h"
#include "core/plan/hook.h"

namespace shardrun::partition {

/// What a strategy's hook does with a bucket on one rank.
struct BucketHook {
  std::uint32_t group = 0;  ///< a number of Programs::hook_groups
  plan::HookPlan plan;
};

/// States that are finalized together, in the same way: their buffers lie one after the other.
struct Bucket {
  std::vector<graph::StateId> states;  ///< in the order of their buffers
  std::vector<Transition> steps;       ///< of the first one's finalization; of the others by the same collectives
  std::optional<BucketHook> hook = std::nullopt;  ///< of a step that is a hook; none: this rank has nothing to do
};

/// What the tensors of a hook's group have in common, apart from what finalizes them: the mesh axes that split them,
/// and those over which they vary. Ranks that have the same of one of them have the same of all.
struct GroupKey {
  std::set<mesh::AxisId> split;
  std::vector<mesh::AxisId> varying;

  bool operator==(const GroupKey&) const = default;
};

[[nodiscard]] GroupKey group_key(const mesh::Placement& placement);

/// The buckets of a function: the partial states that it adds to, in the order of their last contributions.
/// A bucket takes as many states as have up to `bytes` together (`state_bytes` of each), at least one; in this order
/// too. Metrics, which the stages of a pipeline complete at different places and finalize together, are next to each
/// other behind the last of them, and in one bucket where they are finalized alike. `finalizes`: whether this rank
/// takes part in a state's finalization.
[[nodiscard]] std::vector<Bucket> buckets_of(const graph::Graph& graph, const SplitFunction& function,
                                             const std::vector<Finalization>& finalizations,
                                             const std::function<bool(graph::StateId)>& finalizes,
                                             const std::vector<std::uint64_t>& state_bytes, std::uint64_t bytes);

}  // namespace shardrun::partition
