#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "plugins/loader/strategy.h"

namespace shardrun::plugins {

/// What a strategy is told of a graph: parameters, axes, cut points, and the cost of each layer in one optimizer step
/// of `microbatch_rows`.
[[nodiscard]] StrategyRequest describe(const graph::Graph& graph, const std::vector<std::int64_t>& microbatch_rows);

}  // namespace shardrun::plugins
