#pragma once

#include <optional>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/placements.h"

namespace shardrun::partition {

/// The number of nodes, state writes and outputs that read each value of a function.
[[nodiscard]] IdVector<graph::ValueId, int> count_readers(const graph::Function& function);

/// The placement that is wanted for each value of a function: the one that the plan gives its cut point. If an
/// elementwise node makes a value and its only reader is elementwise, the value takes the placement wanted for the
/// reader's result. So a partial sum before a split cut point becomes a reduce_scatter.
[[nodiscard]] IdVector<graph::ValueId, std::optional<mesh::Placement>> wanted_placements(
    const graph::Function& function, const Placements& placements, const IdVector<graph::ValueId, int>& readers);

}  // namespace shardrun::partition
