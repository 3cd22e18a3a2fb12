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
/// Each node's factors take mesh axes first from the placements that are wanted for its results (by a cut point,
/// otherwise by the axes' rules), then from the placements of its operands, larger operands first. The operands are
/// resharded to these axes, from which the results' placements follow. A partial value stays partial through ops that
/// are linear in it, as long as it has one reader. With several readers it is reduced once for all of them.
[[nodiscard]] ShardedGraph shard(const graph::Graph& graph, const Placements& placements);

[[nodiscard]] std::string to_string(const ShardedGraph& sharded, const graph::Graph& graph, const mesh::Mesh& mesh);

}  // namespace shardrun::partition
