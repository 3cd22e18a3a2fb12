#include "core/partition/wanted_placements.h"

#include <algorithm>
#include <set>

namespace shardrun::partition {
namespace {

using graph::Node;
using graph::ValueId;

bool is_elementwise(const Node& node) {
  return node.outputs.size() == 1 &&
         std::all_of(node.rule.factors.begin(), node.rule.factors.end(),
                     [](const graph::Factor& factor) { return factor.kind == graph::FactorClass::pass_through; });
}

}  // namespace

std::vector<int> count_readers(const graph::Function& function) {
  std::vector<int> readers(function.values.size(), 0);
  for (const Node& node : function.nodes) {
    const std::set<ValueId> operands(node.inputs.begin(), node.inputs.end());
    for (const ValueId id : operands) {
      ++readers[index(id)];
    }
  }
  for (const graph::Port& port : function.outputs) {
    ++readers[index(port.value)];
  }
  for (const graph::StateWrite& write : function.writes) {
    ++readers[index(write.value)];
  }
  return readers;
}

std::vector<std::optional<mesh::Placement>> wanted_placements(const graph::Function& function,
                                                              const Placements& placements,
                                                              const std::vector<int>& readers) {
  std::vector<std::optional<mesh::Placement>> wanted(function.values.size());
  for (std::size_t v = 0; v < function.values.size(); ++v) {
    const auto point = placements.cut_points.find(function.values[v].cut_point);
    if (point != placements.cut_points.end()) {
      wanted[v] = point->second;
    }
  }
  for (auto node = function.nodes.rbegin(); node != function.nodes.rend(); ++node) {
    const std::optional<mesh::Placement> result = wanted[index(node->outputs[0])];
    for (std::size_t i = 0; result && is_elementwise(*node) && i < node->inputs.size(); ++i) {
      const ValueId id = node->inputs[i];
      const std::vector<int>& dims = node->rule.inputs[std::min(i, node->rule.inputs.size() - 1)];
      const graph::NodeId producer = function.values[index(id)].producer;
      if (!wanted[index(id)] && readers[index(id)] == 1 && dims == node->rule.outputs[0] && producer >= 0 &&
          is_elementwise(function.nodes[index(producer)])) {
        wanted[index(id)] = result;
      }
    }
  }
  return wanted;
}

}  // namespace shardrun::partition
