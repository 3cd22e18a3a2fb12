#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace shardrun::verify {

/// Which states are compared, by state; empty: all.
using Selection = std::vector<bool>;

/// The states whose names a glob matches, and those that belong to a parameter whose name it matches: its gradient and
/// its optimizer's states. No glob: all. Throws Error{usage} for one that matches nothing.
[[nodiscard]] Selection select(const graph::Graph& graph, const std::vector<std::string>& globs);

[[nodiscard]] inline bool is_selected(const Selection& selection, std::size_t state) {
  return selection.empty() || selection[state];
}

}  // namespace shardrun::verify
