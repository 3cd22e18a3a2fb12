#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "core/job/job.h"
#include "plugins/loader/strategy.h"

namespace shardrun::compile {

/// The description of a graph for a strategy: parameters, axes, cut points, and the cost of each layer in a step of
/// `microbatch_rows`. Without training, the cost is that of a call of `forward` with the first of `forward_rows`, or of
/// a `prefill` and a `decode`. If `cluster` has rates, costs include seconds (by the roofline model).
[[nodiscard]] plugins::StrategyRequest describe(const graph::Graph& graph,
                                                const std::vector<std::int64_t>& microbatch_rows,
                                                const std::vector<std::int64_t>& forward_rows = {},
                                                const job::ClusterSettings& cluster = {});

}  // namespace shardrun::compile
