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

/// What a function is lowered for.
struct LowerSettings {
  const graph::Graph& graph;
  const RankSettings& rank;
  const Partition& partition;
  const std::vector<Buffer>& states;  ///< become the first buffers
  const std::vector<Buffer>& finalized;
  const std::vector<Step>& steps;
  const std::vector<Bucket>& buckets;  ///< that are finalized as soon as they are complete; none: sums stay partial
};

/// The function's instructions on one rank, step by step, over buffers without offsets yet.
/// State writes are fused into the instruction that makes the value where its op can add to, or overwrite, the state's
/// buffer and nothing reads the old contents later; otherwise they are copies. What finalizes buckets runs while the
/// rest is computed; it is waited for at the end.
[[nodiscard]] Program lower(const SplitFunction& function, const LowerSettings& settings);

}  // namespace shardrun::partition
