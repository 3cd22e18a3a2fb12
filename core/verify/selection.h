#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace shardrun::verify {

/// Whether each state is compared. Empty: all are.
using Selection = IdVector<graph::StateId, bool>;

/// Selects the states whose names match a glob and that snapshots have at some moment, and the gradients and optimizer
/// states of matching parameters. Without globs, selects all states. Throws Error{usage} for a glob that matches
/// nothing.
[[nodiscard]] Selection select(const graph::Graph& graph, const std::vector<std::string>& globs);

[[nodiscard]] inline bool is_selected(const Selection& selection, graph::StateId state) {
  return selection.empty() || selection[state];
}

}  // namespace shardrun::verify
