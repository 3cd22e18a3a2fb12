#pragma once

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Removes the nodes that no write, output or cut point needs, such as a scalar of which only the gradient is used.
[[nodiscard]] Function without_unused(const Function& function);

}  // namespace shardrun::graph
