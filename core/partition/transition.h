#pragma once

#include <optional>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/sharded.h"

namespace shardrun::partition {

/// The next step on the way from one placement to another; nothing when it is reached. Slices come first, so that less
/// is moved; then what is owed; gathers last.
[[nodiscard]] std::optional<Transition> next_step(const mesh::Placement& from, const mesh::Placement& to);

/// Where a step leads.
[[nodiscard]] mesh::Placement after(const Transition& step, mesh::Placement placement);

/// What of a state's debts can be paid by a reduce_scatter in place, as the update reads it, is paid so, and first:
/// less is left for the others.
[[nodiscard]] Settlement settlement_of(const graph::State& state, const mesh::Placement& stored,
                                       const mesh::Placement& update, std::vector<mesh::Owed> owed);

}  // namespace shardrun::partition
