#pragma once

#include <map>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/shard.h"

namespace shardrun::partition {

struct FunctionSharding {
  SplitFunction function;
  /// For each state that the function adds to: the sums in which all added values are partial.
  std::map<graph::StateId, std::vector<mesh::Partial>> partial;
};

/// Splits one function. `known`: has the partial sums and the finalization of each state. Null: every state stays
/// partial in all sums in which the added values are.
[[nodiscard]] FunctionSharding shard_function(const graph::Graph& graph, const graph::Function& function,
                                              const Placements& placements, const ShardedGraph* known);

/// Keeps in `partial` only the elements of `others`.
void keep_common(std::vector<mesh::Partial>& partial, const std::vector<mesh::Partial>& others);

}  // namespace shardrun::partition
