#pragma once

#include <optional>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/shard.h"

namespace shardrun::partition {

/// The next slice or collective on the way from one placement to another; nothing if they are equal. Slices come first,
/// because they leave less to move; then reductions; gathers last.
[[nodiscard]] std::optional<Transition> next_transition(const mesh::Placement& from, const mesh::Placement& to);

/// The placement after a step.
[[nodiscard]] mesh::Placement after(const Transition& step, mesh::Placement placement);

/// Chooses the collectives that finalize a partial state. Axes that the state varies over need none. If the update
/// reads only a part, an in-place reduce_scatter comes before the all_reduces and leaves them less to reduce.
[[nodiscard]] Finalization finalization_of(const graph::State& state, const mesh::Placement& stored,
                                           const mesh::Placement& update, std::vector<mesh::Partial> partial);

/// Replaces the all_reduces that the plan's hook sync_gradients stands for by the hook, behind all other collectives.
/// Throws Error{job} if the gradient of one of the hook's tensors has no such all_reduce.
void hook_finalizations(const graph::Graph& graph, const Placements& placements,
                        IdVector<graph::StateId, Finalization>& finalizations);

}  // namespace shardrun::partition
