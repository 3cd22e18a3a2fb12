#pragma once

#include <cstdint>

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Which results of repeated layers are computed again in backward, so that they need not last from forward to there.
enum class Remat : std::uint8_t {
  none,
  layer,      ///< all but what other layers read (Chen et al. 2016, arXiv:1604.06174, section 3)
  selective,  ///< those of cheap ops that follow from what lasts anyway (Korthikanti et al. 2022, arXiv:2205.05198)
};

/// The same numbers from other nodes: instead of a result that is not kept, backward reads that of a clone of its node,
/// named `recompute/…`, which stands before its first reader. Each node is cloned at most once, and only where it is
/// needed; clones are part of the gradients of activations, in the layer of what they repeat.
/// `layers`: of the graph.
[[nodiscard]] Function rematerialize(const Function& function, Remat remat, std::int32_t layers);

}  // namespace shardrun::graph
