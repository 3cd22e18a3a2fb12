#pragma once

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/mesh/placement.h"
#include "core/partition/placements.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The collectives that finalize a partial state, in place, at a step's last call. First come the reduce_scatters,
/// which leave each rank the part that its update reads. Then come the all_reduces, then the strategy's hook.
struct Finalization {
  std::vector<Transition> steps;
  mesh::Placement after;  ///< of the part that is complete afterwards
};

/// A graph's functions with their transitions, and how they leave the states.
struct ShardedGraph {
  std::vector<SplitFunction> functions;  ///< as in the graph
  /// The mesh axes over which each state is partial within a step: before the step's last call a rank has only its own
  /// contribution.
  IdVector<graph::StateId, std::vector<mesh::Partial>> partial;
  IdVector<graph::StateId, Finalization> finalizations;
};

/// Propagates the placements through every function and inserts transitions where they differ.
///
/// Each node's factors get mesh axes first from the placements that are wanted for its results (by a cut point, else by
/// the axes' rules), then from the placements of its operands, larger operands first. The operands are resharded to
/// match; the results' placements follow. A partial value stays partial through ops that are linear in it while it has
/// one reader. It is reduced once for all readers.
[[nodiscard]] ShardedGraph shard(const graph::Graph& graph, const Placements& placements);

[[nodiscard]] std::string to_string(const ShardedGraph& sharded, const graph::Graph& graph, const mesh::Mesh& mesh);

}  // namespace shardrun::partition
