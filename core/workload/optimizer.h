#pragma once

#include <vector>

#include "core/graph/builder.h"
#include "core/workload/program.h"

namespace shardrun::workload {

// The function `update` of role `once`. It reads the states of gradients, and writes parameters, moments and the state
// `gradient_norm`. Building it declares the moments.

/// The states that are gradients, in order.
[[nodiscard]] std::vector<graph::StateId> gradients_of(const graph::Graph& graph);

/// Adds the sum of the squares of all elements of these gradients.
[[nodiscard]] graph::ValueId add_norm_squared(graph::FunctionBuilder& builder,
                                              const std::vector<graph::StateId>& gradients);

/// Adds one optimizer step of all parameters. `factor`: a scalar by which the gradients are multiplied first; none: 1.
void add_steps(graph::FunctionBuilder& builder, const OptimizerSettings& optimizer,
               const std::vector<graph::StateId>& gradients, graph::ValueId norm_squared, graph::ValueId factor = {});

/// Adds the function `update`. It clips by the norm of all gradients. If there is a state `loss_count`, gradients are
/// divided by it.
void add_update(graph::Graph& graph, const OptimizerSettings& optimizer);

}  // namespace shardrun::workload
