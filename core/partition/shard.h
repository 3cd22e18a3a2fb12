#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/partition/placements.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The collectives that finish a state's deferred sum at a step's last call, in place: first reduce_scatters, each of
/// which leaves a rank the part that it will read, then all_reduces, then the strategy's hook.
struct Finalization {
  std::vector<Transition> steps;
  mesh::Placement after;  ///< of the part that is complete then, and is read
};

/// A graph's functions with their transitions, and the states as the functions leave them.
struct ShardedGraph {
  std::vector<SplitFunction> functions;  ///< as in the graph
  /// The deferred sums of each state: from the first call of a step to the last each rank has what it has added.
  std::vector<std::vector<mesh::Partial>> partial;
  std::vector<Finalization> finalizations;  ///< of each state
};

/// Propagates the placements through every function and inserts what is missing.
///
/// Mesh axes are given to each node's factors: first as the results' placements ask (cut point, then axis rules), then
/// as the operands are placed, the larger first. Operands follow, then results. A partial value stays partial through
/// ops that are linear in it as long as it has one reader; it is reduced once for all readers.
[[nodiscard]] ShardedGraph shard(const graph::Graph& graph, const Placements& placements);

[[nodiscard]] std::string to_string(const ShardedGraph& sharded, const graph::Graph& graph, const mesh::Mesh& mesh);

}  // namespace shardrun::partition
