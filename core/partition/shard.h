#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/partition/placements.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The collectives that finalize a partial state in place at a step's last call: first reduce_scatters, which leave
/// each rank the part that its update reads, then all_reduces, then the strategy's hook.
struct Finalization {
  std::vector<Transition> steps;
  mesh::Placement after;  ///< the placement of the part that is complete afterwards
};

/// A graph's functions with their transitions, and the placements in which they leave the states.
struct ShardedGraph {
  std::vector<SplitFunction> functions;  ///< in the order of the graph
  /// The sums in which each state is partial within a step. Until the step's last call, a rank has only what it
  /// contributed itself.
  IdVector<graph::StateId, std::vector<mesh::Partial>> partial;
  IdVector<graph::StateId, Finalization> finalizations;
};

/// Propagates the placements through every function and inserts transitions where they differ.
///
/// For each node, decides over which mesh axes the factors of its op's sharding rule are split. The placements of its
/// results come first: the plan gives one for the result's cut point, or by its rules for named axes. Nodes of the
/// update skip this. The placements of its operands come next, those of larger operands first. Then the operands are
/// resharded to fit, and the results' placements follow. A partial value stays partial through linear ops if one node
/// reads it, else it is reduced once. Throws Error{job} if a varying value is written to a state that does not vary.
[[nodiscard]] ShardedGraph shard(const graph::Graph& graph, const Placements& placements);

[[nodiscard]] std::string to_string(const ShardedGraph& sharded, const graph::Graph& graph, const mesh::Mesh& mesh);

}  // namespace shardrun::partition
