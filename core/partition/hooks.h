#pragma once

#include <vector>

#include "core/graph/graph.h"
#include "core/partition/bucket.h"
#include "core/partition/partition.h"
#include "core/plan/plan.h"

namespace shardrun::partition {

/// Adds the hook states of a plan: one for each tensor of a hook and each state that the hook keeps. A hook over a
/// mesh axis of one rank has none. Throws Error{job} where the graph has a state of that name.
void add_hook_states(graph::Graph& graph, const plan::Plan& plan);

/// The hook that is given states of this kind: parameters or gradients. Null where there is none.
[[nodiscard]] const PlacedHook* hook_of(graph::StateKind kind, const Placements& placements) noexcept;

/// The hook states of a group of parameters, or of gradients: for each state that the hook keeps those of the group, in
/// its order.
[[nodiscard]] std::vector<std::vector<graph::StateId>> hook_states_of(const std::vector<graph::StateId>& group,
                                                                      const PlacedHook& hook,
                                                                      const graph::Graph& graph);

/// Asks the strategy what its hook needs for each bucket that has one, and keeps the answers there. A bucket of which
/// this rank has nothing is left out. Appends the groups to `programs.hook_groups`, from whose `states` it has the
/// parts' shapes. Throws what `settings.plan_hook` throws.
void plan_hooks(std::vector<Bucket>& buckets, Programs& programs, const graph::Graph& graph,
                const Placements& placements, const RankSettings& settings);

}  // namespace shardrun::partition
