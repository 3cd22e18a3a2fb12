#pragma once

#include <optional>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/shard.h"

namespace shardrun::partition {

/// The next step on the way from one placement to another; nothing when it is reached. Slices come first, so that less
/// is moved; then what is owed; gathers last.
[[nodiscard]] std::optional<Transition> next_step(const mesh::Placement& from, const mesh::Placement& to);

/// Where a step leads.
[[nodiscard]] mesh::Placement after(const Transition& step, mesh::Placement placement);

/// What a state owes over axes along which it varies stays each rank's own. What of its other debts can be paid by a
/// reduce_scatter in place, as the update reads it, is paid so, and first: less is left for the others.
[[nodiscard]] Settlement settlement_of(const graph::State& state, const mesh::Placement& stored,
                                       const mesh::Placement& update, std::vector<mesh::Owed> owed);

/// Puts the plan's hook sync_gradients in place of the all_reduces that it stands for, behind all others. Throws
/// Error{job} where a gradient of its tensors has none.
void hook_settlements(const graph::Graph& graph, const Placements& placements, std::vector<Settlement>& settlements);

}  // namespace shardrun::partition
