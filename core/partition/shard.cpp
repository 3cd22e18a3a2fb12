#include "core/partition/shard.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "core/partition/shard_function.h"
#include "core/partition/transition.h"

namespace shardrun::partition {
namespace {

using mesh::Partial;

/// The sums in which each state is partial within a step: those that all values added to it have in common.
IdVector<graph::StateId, std::vector<Partial>> partial_states(const graph::Graph& graph, const Placements& placements) {
  std::map<graph::StateId, std::vector<Partial>> common;
  for (const graph::Function& function : graph.functions) {
    for (const auto& [state, partial] : shard_function(graph, function, placements, nullptr).partial) {
      const auto [known, is_first] = common.emplace(state, partial);
      if (!is_first) {
        keep_common(known->second, partial);
      }
    }
  }
  IdVector<graph::StateId, std::vector<Partial>> states(graph.states.size());
  for (auto& [state, partial] : common) {
    states[state] = std::move(partial);
  }
  return states;
}

}  // namespace

ShardedGraph shard(const graph::Graph& graph, const Placements& placements) {
  ShardedGraph sharded;
  sharded.partial = partial_states(graph, placements);
  for (const graph::StateId s : graph.states.ids()) {
    sharded.finalizations.push_back(
        finalization_of(graph.states[s], placements.states[s], placements.updates[s], sharded.partial[s]));
  }
  hook_finalizations(graph, placements, sharded.finalizations);
  for (const graph::Function& function : graph.functions) {
    sharded.functions.push_back(shard_function(graph, function, placements, &sharded).function);
  }
  return sharded;
}

std::string to_string(const ShardedGraph& sharded, const graph::Graph& graph, const mesh::Mesh& mesh) {
  std::string text;
  for (const graph::StateId s : sharded.partial.ids()) {
    if (!sharded.partial[s].empty()) {
      const mesh::Placement partial{.dims = {}, .partial = sharded.partial[s]};
      text += fmt::format("state {}: {} within a step\n", graph.states[s].name, to_string(partial, mesh));
    }
  }
  for (const SplitFunction& function : sharded.functions) {
    text += fmt::format("\nfunction {} rows {}\n", function.name, function.rows);
    for (const SplitNode& node : function.nodes) {
      for (const graph::ValueId id : node.outputs) {
        const SplitValue& value = function.values[id];
        text += fmt::format("  {} = {} {}\n", value.name, node.op->name, to_string(value.placement, mesh));
      }
    }
  }
  return text;
}

}  // namespace shardrun::partition
