#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/graph/graph.h"
#include "plugins/loader/hooks.h"
#include "plugins/loader/strategy.h"

namespace shardrun::partition {

/// Where things live: what a strategy answered, checked at the border. It has no arithmetic in it.
struct Plan {
  std::string strategy;
  plugins::PlanDraft draft;
  std::shared_ptr<const plugins::Hooks> hooks;  ///< null where the draft has none

  [[nodiscard]] std::int64_t ranks() const noexcept;
};

/// What a strategy is told of a graph: parameters, axes, cut points, and the cost of each layer in one optimizer step
/// of `microbatch_rows`.
[[nodiscard]] plugins::StrategyRequest describe(const graph::Graph& graph,
                                                const std::vector<std::int64_t>& microbatch_rows);

/// The plan of `strategy` for a graph. Throws Error{job} when it cannot split this job, Error{plugin} when it fails.
[[nodiscard]] Plan make_plan(const plugins::Strategy& strategy, const plugins::StrategyRequest& request);

/// Adds the states that the plan's hooks keep beside tensors, where their mesh axes have several ranks.
void add_hook_states(graph::Graph& graph, const Plan& plan);

[[nodiscard]] std::string to_string(const Plan& plan);

}  // namespace shardrun::partition
