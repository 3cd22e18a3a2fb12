#pragma once

#include <optional>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/shard.h"

namespace shardrun::partition {

/// The next step on the way from one placement to another; nothing when it is reached. Slices come first, so that less
/// is moved; then reductions; gathers last.
[[nodiscard]] std::optional<Transition> next_step(const mesh::Placement& from, const mesh::Placement& to);

/// Where a step leads.
[[nodiscard]] mesh::Placement after(const Transition& step, mesh::Placement placement);

/// Chooses the collectives that finish a state's deferred sum. Axes it varies over need none. A reduce_scatter in
/// place, where the update reads only a part, comes before the all_reduces: it leaves less for them.
[[nodiscard]] Finalization finalization_of(const graph::State& state, const mesh::Placement& stored,
                                           const mesh::Placement& update, std::vector<mesh::Partial> partial);

/// Puts the plan's hook sync_gradients in place of the all_reduces that it stands for, behind all others. Throws
/// Error{job} where a gradient of its tensors has none.
void hook_finalizations(const graph::Graph& graph, const Placements& placements,
                        std::vector<Finalization>& finalizations);

}  // namespace shardrun::partition
