#pragma once

#include <vector>

#include "core/graph/graph.h"
#include "core/partition/bucket.h"
#include "core/partition/partition.h"
#include "core/plan/plan.h"

namespace shardrun::partition {

/// Adds the hook states of a plan to the graph: for each tensor of a hook, one for each state that the hook keeps.
/// Throws Error{job} if the graph already has a state of that name.
void add_hook_states(graph::Graph& graph, const plan::Plan& plan);

/// The hook that processes states of this kind: gradients (sync_gradients), or parameters and their master weights
/// (after_step). Null if the plan has no such hook.
[[nodiscard]] const PlacedHook* hook_of(graph::StateKind kind, const Placements& placements) noexcept;

/// Throws Error{job} if the hook after_step processes master weights that are placed or staged unlike their parameters.
void require_masters(const graph::Graph& graph, const Partition& partition);

/// For each state that the hook keeps: the hook states of this group of tensors, in the group's order.
[[nodiscard]] std::vector<std::vector<graph::StateId>> hook_states_of(const std::vector<graph::StateId>& group,
                                                                      const PlacedHook& hook,
                                                                      const graph::Graph& graph);

/// Asks the strategy what its hook does with each bucket, and stores the answers in the buckets. Skips buckets without
/// elements on this rank. Appends the groups to `programs.hook_groups`; reads the shapes of this rank's parts from
/// `programs.states`. Throws the errors of `settings.plan_hook`.
void plan_hooks(std::vector<Bucket>& buckets, Programs& programs, const graph::Graph& graph,
                const Placements& placements, const RankSettings& settings);

}  // namespace shardrun::partition
