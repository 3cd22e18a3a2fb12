#include "core/partition/wanted_placements.h"

#include <algorithm>
#include <set>

namespace shardrun::partition {
namespace {

using graph::Node;
using graph::ValueId;

bool is_elementwise(const Node& node) {
  return node.outputs.size() == 1 && node.rule.windows.empty() &&
         std::all_of(node.rule.factors.begin(), node.rule.factors.end(),
                     [](const graph::Factor& factor) { return factor.kind == graph::FactorClass::pass_through; });
}

}  // namespace

IdVector<ValueId, int> count_readers(const graph::Function& function) {
  IdVector<ValueId, int> readers(function.values.size(), 0);
  for (const Node& node : function.nodes) {
    const std::set<ValueId> operands(node.inputs.begin(), node.inputs.end());
    for (const ValueId id : operands) {
      ++readers[id];
    }
  }
  for (const graph::Port& port : function.outputs) {
    ++readers[port.value];
  }
  for (const graph::StateWrite& write : function.writes) {
    ++readers[write.value];
  }
  return readers;
}

IdVector<ValueId, std::optional<mesh::Placement>> wanted_placements(const graph::Function& function,
                                                                    const Placements& placements,
                                                                    const IdVector<ValueId, int>& readers) {
  IdVector<ValueId, std::optional<mesh::Placement>> wanted(function.values.size());
  for (const ValueId v : function.values.ids()) {
    const auto point = placements.cut_points.find(function.values[v].cut_point);
    if (point != placements.cut_points.end()) {
      wanted[v] = point->second;
    }
  }
  for (std::size_t n = function.nodes.size(); n-- > 0;) {
    const Node& node = function.nodes[graph::NodeId(n)];
    const std::optional<mesh::Placement> result = wanted[node.outputs[0]];
    for (std::size_t i = 0; result && is_elementwise(node) && i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      const std::vector<graph::FactorId>& dims = node.rule.inputs[std::min(i, node.rule.inputs.size() - 1)];
      const graph::NodeId producer = function.values[id].producer;
      if (!wanted[id] && readers[id] == 1 && dims == node.rule.outputs[0] && producer.exists() &&
          is_elementwise(function.nodes[producer])) {
        wanted[id] = result;
      }
    }
  }
  return wanted;
}

}  // namespace shardrun::partition
