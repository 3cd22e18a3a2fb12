#pragma once

#include <map>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/shard.h"

namespace shardrun::partition {

struct FunctionSharding {
  SplitFunction function;
  /// Of each state that something is added to, the sums over ranks that all values added to it are.
  std::map<graph::StateId, std::vector<mesh::Partial>> partial;
};

/// Splits one function. `known`: which sums each state may stay partial in, and how it is finalized; null: it may stay
/// partial in as many as the values added are.
[[nodiscard]] FunctionSharding shard_function(const graph::Graph& graph, const graph::Function& function,
                                              const Placements& placements, const ShardedGraph* known);

/// Leaves in `partial` what is in `others` too.
void keep_common(std::vector<mesh::Partial>& partial, const std::vector<mesh::Partial>& others);

}  // namespace shardrun::partition
