#include "core/graph/rewrites.h"

#include <algorithm>
#include <utility>

#include "core/graph/function_copy.h"

namespace shardrun::graph {
namespace {

bool is_backward(const Node& node) noexcept {
  return node.phase == Phase::backward_input || node.phase == Phase::backward_weight;
}

/// Per value: whether backward reads it.
IdVector<ValueId, bool> read_by_backward(const Function& function) {
  IdVector<ValueId, bool> read(function.values.size(), false);
  for (const Node& node : function.nodes) {
    for (const ValueId id : node.inputs) {
      read[id] = read[id] || is_backward(node);
    }
  }
  return read;
}

/// Per value: whether a forward node outside of its layer reads it.
IdVector<ValueId, bool> leaving_layers(const Function& function) {
  IdVector<ValueId, bool> leaving(function.values.size(), false);
  for (const Node& node : function.nodes) {
    for (const ValueId id : node.inputs) {
      const NodeId producer = function.values[id].producer;
      if (!is_backward(node) && producer.exists() && function.nodes[producer].layer != node.layer) {
        leaving[id] = true;
      }
    }
  }
  return leaving;
}

/// Per value: whether backward reads forward's result instead of recomputing it.
IdVector<ValueId, bool> choose_kept(const Function& function, Remat remat, std::int32_t layers) {
  const IdVector<ValueId, bool> leaving = leaving_layers(function);
  IdVector<ValueId, bool> kept(function.values.size(), true);
  // Values that backward can read without keeping more: states, what it reads anyway, and values recomputed from these.
  IdVector<ValueId, bool> available = read_by_backward(function);
  for (const ValueId v : function.values.ids()) {
    available[v] = available[v] || function.values[v].state.exists();
  }
  for (const Node& node : function.nodes) {
    if (remat == Remat::none || remat == Remat::gathers || node.layer < 0 || node.layer >= layers ||
        is_backward(node)) {
      continue;
    }
    const bool follows = std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return available[id]; });
    const bool again = remat == Remat::layer || (node.op->cheap && follows);
    for (const ValueId id : node.outputs) {
      kept[id] = !again || leaving[id];
      available[id] = available[id] || !kept[id];
    }
  }
  return kept;
}

/// Copies a function and inserts the clones.
class Rematerialization {
 public:
  Rematerialization(const Function& function, const IdVector<ValueId, bool>& kept)
      : function_(function), kept_(kept), copy_(function), again_(function.values.size()) {}

  Function run() {
    for (const Node& node : function_.nodes) {
      copy_.add_given_before(node.outputs.front());
      add(node);
    }
    return copy_.finish();
  }

 private:
  void add(Node node) {
    for (ValueId& id : node.inputs) {
      id = is_backward(node) ? in_backward(id) : copy_.values()[id];
    }
    copy_.append(std::move(node), copy_.values());
  }

  ValueId in_backward(ValueId id) {
    if (kept_[id]) {
      return copy_.values()[id];
    }
    if (!again_[id].exists()) {
      clone(function_.nodes[function_.values[id].producer]);
    }
    return again_[id];
  }

  void clone(Node node) {
    for (ValueId& id : node.inputs) {
      id = in_backward(id);
    }
    node.phase = Phase::backward_input;
    copy_.append(std::move(node), again_, "recompute/");
  }

  const Function& function_;
  const IdVector<ValueId, bool>& kept_;
  FunctionCopy copy_;
  IdVector<ValueId, ValueId> again_;  ///< by value: the result of its clone
};

}  // namespace

Function rematerialize(const Function& function, Remat remat, std::int32_t layers) {
  Function made = Rematerialization(function, choose_kept(function, remat, layers)).run();
  made.gathers_again = remat == Remat::gathers;
  return made;
}

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
