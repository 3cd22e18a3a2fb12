#include "core/graph/remat.h"

#include <algorithm>
#include <utility>

namespace shardrun::graph {
namespace {

bool is_backward(const Node& node) noexcept {
  return node.phase == Phase::backward_input || node.phase == Phase::backward_weight;
}

/// Of each value, whether backward reads it.
IdVector<ValueId, bool> read_by_backward(const Function& function) {
  IdVector<ValueId, bool> read(function.values.size(), false);
  for (const Node& node : function.nodes) {
    for (const ValueId id : node.inputs) {
      read[id] = read[id] || is_backward(node);
    }
  }
  return read;
}

/// Per value, whether forward reads it outside of its own layer.
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

/// Of each value, whether backward reads it as forward left it.
IdVector<ValueId, bool> choose_kept(const Function& function, Remat remat, std::int32_t layers) {
  const IdVector<ValueId, bool> leaving = leaving_layers(function);
  IdVector<ValueId, bool> kept(function.values.size(), true);
  // Values that backward has without keeping more: states, values that it reads anyway, and values computed from both.
  IdVector<ValueId, bool> available = read_by_backward(function);
  for (const ValueId v : function.values.ids()) {
    available[v] = available[v] || function.values[v].state.exists();
  }
  for (const Node& node : function.nodes) {
    if (remat == Remat::none || node.layer < 0 || node.layer >= layers || is_backward(node)) {
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

/// Copies a function node by node, and inserts the clones.
class Rewriting {
 public:
  Rewriting(const Function& function, const IdVector<ValueId, bool>& kept)
      : function_(function), kept_(kept), now_(function.values.size()), again_(function.values.size()) {}

  Function run() {
    made_.name = function_.name;
    made_.role = function_.role;
    made_.rows = function_.rows;
    for (const Node& node : function_.nodes) {
      add_given_before(node.outputs.front());
      add(node);
    }
    add_given_before(function_.values.next());
    for (const Port& port : function_.inputs) {
      made_.inputs.push_back({port.name, now_[port.value]});
    }
    for (const Port& port : function_.outputs) {
      made_.outputs.push_back({port.name, now_[port.value]});
    }
    for (const StateWrite& write : function_.writes) {
      made_.writes.push_back({write.state, now_[write.value], write.mode});
    }
    return std::move(made_);
  }

 private:
  /// Inputs and state reads, which stay before the same nodes.
  void add_given_before(ValueId end) {
    for (const ValueId id : IdRange(next_given_, end)) {
      if (!function_.values[id].producer.exists()) {
        now_[id] = made_.values.push_back(function_.values[id]);
      }
    }
    next_given_ = end;
  }

  void add(Node node) {
    for (ValueId& id : node.inputs) {
      id = is_backward(node) ? in_backward(id) : now_[id];
    }
    append(std::move(node), now_, "");
  }

  ValueId in_backward(ValueId id) {
    if (kept_[id]) {
      return now_[id];
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
    append(std::move(node), again_, "recompute/");
  }

  /// `results` learns which value is which.
  void append(Node node, IdVector<ValueId, ValueId>& results, const std::string& prefix) {
    node.name = prefix + node.name;
    for (ValueId& id : node.outputs) {
      Value value = function_.values[id];
      value.name = prefix + value.name;
      value.producer = made_.nodes.next();
      results[id] = made_.values.push_back(std::move(value));
      id = results[id];
    }
    made_.nodes.push_back(std::move(node));
  }

  const Function& function_;
  const IdVector<ValueId, bool>& kept_;
  IdVector<ValueId, ValueId> now_;    ///< per value, its number in the new function
  IdVector<ValueId, ValueId> again_;  ///< of each value, the result of its clone
  ValueId next_given_ = ValueId(0);
  Function made_ = {};
};

}  // namespace

Function rematerialize(const Function& function, Remat remat, std::int32_t layers) {
  return Rewriting(function, choose_kept(function, remat, layers)).run();
}

}  // namespace shardrun::graph
