#pragma once

#include <optional>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/shard.h"

namespace shardrun::partition {

/// The next slice or collective that leads from one placement to another; nothing if they are equal. Slices come first,
/// because they leave less to move; then reductions; then gathers; then halo exchanges.
[[nodiscard]] std::optional<Transition> next_transition(const mesh::Placement& from, const mesh::Placement& to);

/// The placement after a transition.
[[nodiscard]] mesh::Placement after(const Transition& step, mesh::Placement placement);

/// Chooses the collectives that finalize a partial state. Axes over which the state varies need none. If the update
/// reads only a part, an in-place reduce_scatter comes first, so that all_reduces have less to reduce.
[[nodiscard]] Finalization finalization_of(const graph::State& state, const mesh::Placement& stored,
                                           const mesh::Placement& update, std::vector<mesh::Partial> partial);

/// Adds the plan's hook sync_gradients, as the last step, to the finalizations of the gradients that it processes, in
/// place of their all_reduce over the hook's axis. A gradient that varies over that axis has no such all_reduce. Throws
/// Error{job} if another gradient has none, or is also split by a reduce_scatter.
void hook_finalizations(const graph::Graph& graph, const Placements& placements,
                        IdVector<graph::StateId, Finalization>& finalizations);

}  // namespace shardrun::partition
