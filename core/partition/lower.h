#pragma once

#include <vector>

#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/partition/bucket.h"
#include "core/partition/partition.h"
#include "core/partition/program.h"
#include "core/partition/schedule.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// What lower() reads: the graph, its partition, this rank's states and buckets, and the rank's settings.
struct LowerSettings {
  const graph::Graph& graph;
  const RankSettings& rank;
  const Partition& partition;
  const IdVector<graph::StateId, Buffer>& states;  ///< the states become the first buffers
  const IdVector<graph::StateId, Buffer>& finalized;
  const IdVector<StepId, Step>& steps;
  const std::vector<Bucket>& buckets;  ///< the buckets to finalize; empty: sums stay partial
};

/// Lowers a function to the instructions of one rank. Buffers have no offsets yet.
///  - A state write becomes part of the instruction that makes the value, if the op can add to or overwrite the state's
///    buffer and no later instruction reads the old contents. Otherwise it becomes a copy.
///  - Buckets are finalized while other instructions compute. The program waits for them at its end.
[[nodiscard]] Program lower(const SplitFunction& function, const LowerSettings& settings);

}  // namespace shardrun::partition
