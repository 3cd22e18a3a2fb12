#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "core/job/job.h"
#include "plugins/loader/strategy.h"

namespace shardrun::compile {

/// What a strategy is told about a graph: parameters, axes, cut points, and the cost of each layer in one optimizer
/// step of `microbatch_rows`. Without training, the cost is that of one call of `forward` with the first of
/// `forward_rows`. If `cluster` has rates, costs include seconds (by the roofline model).
[[nodiscard]] plugins::StrategyRequest describe(const graph::Graph& graph,
                                                const std::vector<std::int64_t>& microbatch_rows,
                                                const std::vector<std::int64_t>& forward_rows = {},
                                                const job::ClusterSettings& cluster = {});

}  // namespace shardrun::compile
