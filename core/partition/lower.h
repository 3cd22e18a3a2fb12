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

/// The inputs of lowering.
struct LowerSettings {
  const graph::Graph& graph;
  const RankSettings& rank;
  const Partition& partition;
  const IdVector<graph::StateId, Buffer>& states;  ///< become the first buffers
  const IdVector<graph::StateId, Buffer>& finalized;
  const IdVector<StepId, Step>& steps;
  const std::vector<Bucket>& buckets;  ///< finalized as soon as they are complete; empty: sums stay partial
};

/// The function's instructions on one rank, step by step. Buffers have no offsets yet.
///  - A state write is fused into the instruction that makes the value if its op can add to, or overwrite, the state's
///    buffer and nothing reads the old contents later. Otherwise it is a copy.
///  - The finalization of buckets overlaps with computing. It is waited for at the end.
[[nodiscard]] Program lower(const SplitFunction& function, const LowerSettings& settings);

}  // namespace shardrun::partition
