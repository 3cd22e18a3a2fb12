#pragma once

#include "core/graph/graph.h"

namespace shardrun::graph {

/// The parts of a model's loss.
struct Losses {
  ValueId values = {};  ///< of the samples, the same number for each
  ValueId counts = {};  ///< whose sum divides that of the values; none: their number does
};

}  // namespace shardrun::graph
