#pragma once

#include <vector>

#include "core/graph/graph.h"
#include "core/partition/bucket.h"
#include "core/partition/partition.h"
#include "core/plan/plan.h"

namespace shardrun::partition {

/// Adds the hook states of a plan: one for each tensor of a hook and each state that the hook keeps. Throws Error{job}
/// if the graph already has a state of that name.
void add_hook_states(graph::Graph& graph, const plan::Plan& plan);

/// The hook that processes states of this kind: gradients, or the tensors of the hook after_step. Null if there is
/// none.
[[nodiscard]] const PlacedHook* hook_of(graph::StateKind kind, const Placements& placements) noexcept;

/// Throws Error{job} if the hook after_step is given master weights that are not on the same ranks, in the same parts,
/// as their parameters.
void require_masters(const graph::Graph& graph, const Partition& partition);

/// The hook states of a group of tensors of a hook. One list for each state that the hook keeps, in the group's
/// order.
[[nodiscard]] std::vector<std::vector<graph::StateId>> hook_states_of(const std::vector<graph::StateId>& group,
                                                                      const PlacedHook& hook,
                                                                      const graph::Graph& graph);

/// Asks the strategy for its hook's work on each bucket, and stores the answers in the buckets. Skips buckets without
/// an element on this rank. Appends the groups to `programs.hook_groups`; takes the shapes of the parts from
/// `programs.states`. Throws errors of `settings.plan_hook`.
void plan_hooks(std::vector<Bucket>& buckets, Programs& programs, const graph::Graph& graph,
                const Placements& placements, const RankSettings& settings);

}  // namespace shardrun::partition
