#pragma once

#include <optional>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/placements.h"

namespace shardrun::partition {

/// How many nodes, writes and outputs of a function read each of its values.
[[nodiscard]] std::vector<int> count_readers(const graph::Function& function);

/// Where the plan wants each value of a function: a cut point where it says, and a value that one elementwise node
/// alone reads where that node's result is wanted. A partial sum before a split cut point becomes a reduce_scatter so.
[[nodiscard]] std::vector<std::optional<mesh::Placement>> wanted_placements(const graph::Function& function,
                                                                            const Placements& placements,
                                                                            const std::vector<int>& readers);

}  // namespace shardrun::partition
