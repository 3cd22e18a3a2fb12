#pragma once

#include <cstdint>

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Which results of repeated layers are recomputed in backward instead of being kept since forward.
enum class Remat : std::uint8_t {
  none,
  gathers,    ///< none is recomputed; ranks keep only their parts of gathered values, and gather them again
  layer,      ///< all results that no other layer reads (Chen et al. 2016, arXiv:1604.06174, section 3)
  selective,  ///< results of cheap ops on kept values (Korthikanti et al. 2022, arXiv:2205.05198)
};

/// Makes backward read recomputed results where forward's are not kept; its numbers stay the same. The nodes of such
/// results are cloned. A clone is named `recompute/…`, has phase backward_input and its original's layer, and stands
/// before its first reader. A node is cloned at most once. `layers`: number of layers of the graph.
[[nodiscard]] Function rematerialize(const Function& function, Remat remat, std::int32_t layers);

}  // namespace shardrun::graph
