#pragma once

#include "core/graph/graph.h"

namespace shardrun::graph {

/// The function without the nodes that no write, output or cut point needs: a scalar, say, that was computed for its
/// gradient alone.
[[nodiscard]] Function without_unused(const Function& function);

}  // namespace shardrun::graph
