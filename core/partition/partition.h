#pragma once

#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/partition/plan.h"
#include "core/partition/program.h"

namespace shardrun::partition {

/// The programs of one rank: the graph's functions where the plan puts them, over one arena.
/// Throws Error{job} for a plan of more ranks than this version runs (one).
[[nodiscard]] Programs partition(const graph::Graph& graph, const Plan& plan, const device::Device& device,
                                 int threads);

}  // namespace shardrun::partition
