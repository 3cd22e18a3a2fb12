#pragma once

#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/partition/bucket.h"
#include "core/partition/partition.h"
#include "core/partition/program.h"
#include "core/partition/sharded.h"

namespace shardrun::partition {

/// What a function is lowered for.
struct LowerSettings {
  const RankSettings& rank;
  const mesh::Mesh& mesh;
  const std::vector<Buffer>& states;   ///< become the first buffers
  const std::vector<Bucket>& buckets;  ///< that are reduced as soon as they are complete; none: what is owed stays owed
};

/// The function's instructions on one rank, over buffers without offsets yet.
/// State writes are fused into the instruction that makes the value where its op can add to, or overwrite, the state's
/// buffer and nothing reads the old contents later; otherwise they are copies. The reductions of buckets run while the
/// rest is computed; they are waited for at the end.
[[nodiscard]] Program lower(const graph::Graph& graph, const ShardedFunction& function, const LowerSettings& settings);

}  // namespace shardrun::partition
