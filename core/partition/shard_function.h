#pragma once

#include <map>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/shard.h"

namespace shardrun::partition {

struct FunctionSharding {
  SplitFunction function;
  /// For each state that the function adds to: the sums that all added values have in common.
  std::map<graph::StateId, std::vector<mesh::Partial>> partial;
};

/// Splits one function. `known`: the partial sums and the finalization of each state, from ShardedGraph. With null, a
/// state stays partial in every sum that the added value offers.
[[nodiscard]] FunctionSharding shard_function(const graph::Graph& graph, const graph::Function& function,
                                              const Placements& placements, const ShardedGraph* known);

/// Keeps in `partial` only the elements of `others`.
void keep_common(std::vector<mesh::Partial>& partial, const std::vector<mesh::Partial>& others);

}  // namespace shardrun::partition
