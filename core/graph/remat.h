#pragma once

#include <cstdint>

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Which results of repeated layers backward computes again, so that they are not kept from forward to backward.
enum class Remat : std::uint8_t {
  none,
  gathers,    ///< nothing, but ranks gather again what they gathered in forward, and keep their parts
  layer,      ///< all that no other layer reads (Chen et al. 2016, arXiv:1604.06174, section 3)
  selective,  ///< results of cheap ops, computed from kept values (Korthikanti et al. 2022, arXiv:2205.05198)
};

/// Rewrites backward to compute the same numbers without the results that are not kept: it reads the results of clones
/// of their nodes. A clone is named `recompute/…` and stands before its first reader. Each node is cloned at most once,
/// and only if needed. A clone has phase backward_input and the layer of its original. `layers`: of the graph.
[[nodiscard]] Function rematerialize(const Function& function, Remat remat, std::int32_t layers);

}  // namespace shardrun::graph
