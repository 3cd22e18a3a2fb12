#include "core/graph/unused.h"

#include "core/graph/function_copy.h"

namespace shardrun::graph {
namespace {

IdVector<ValueId, bool> used_values(const Function& function) {
  IdVector<ValueId, bool> used(function.values.size(), false);
  for (const Port& port : function.outputs) {
    used[port.value] = true;
  }
  for (const StateWrite& write : function.writes) {
    used[write.value] = true;
  }
  for (std::size_t n = function.nodes.size(); n-- > 0;) {
    const Node& node = function.nodes[NodeId(n)];
    bool any = false;
    for (const ValueId id : node.outputs) {
      any = any || used[id] || !function.values[id].cut_point.empty();
    }
    for (const ValueId id : node.outputs) {
      used[id] = any;
    }
    for (const ValueId id : node.inputs) {
      used[id] = used[id] || any;
    }
  }
  return used;
}

}  // namespace

Function without_unused(const Function& function) {
  const IdVector<ValueId, bool> used = used_values(function);
  FunctionCopy copy(function);
  for (const Node& original : function.nodes) {
    copy.add_given_before(original.outputs.front());
    if (!used[original.outputs.front()]) {
      continue;
    }
    Node node = original;
    for (ValueId& id : node.inputs) {
      id = copy.values()[id];
    }
    copy.append(std::move(node), copy.values());
  }
  return copy.finish();
}

}  // namespace shardrun::graph
