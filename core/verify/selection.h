#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace shardrun::verify {

/// Which states are compared; empty: all.
using Selection = IdVector<graph::StateId, bool>;

/// The states that a glob matches, and the gradient and optimizer states of parameters that it matches. No glob: all
/// states. Throws Error{usage} for a glob that matches nothing.
[[nodiscard]] Selection select(const graph::Graph& graph, const std::vector<std::string>& globs);

[[nodiscard]] inline bool is_selected(const Selection& selection, graph::StateId state) {
  return selection.empty() || selection[state];
}

}  // namespace shardrun::verify
