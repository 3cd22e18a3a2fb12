#include "core/graph/remat.h"

#include <algorithm>
#include <utility>

namespace shardrun::graph {
namespace {

bool is_backward(const Node& node) noexcept {
  return node.phase == Phase::backward_input || node.phase == Phase::backward_weight;
}

/// Of each value, whether backward reads it.
std::vector<bool> read_by_backward(const Function& function) {
  std::vector<bool> read(function.values.size(), false);
  for (const Node& node : function.nodes) {
    for (const ValueId id : node.inputs) {
      read[index(id)] = read[index(id)] || is_backward(node);
    }
  }
  return read;
}

/// Per value, whether forward reads it outside of its own layer.
std::vector<bool> leaving_layers(const Function& function) {
  std::vector<bool> leaving(function.values.size(), false);
  for (const Node& node : function.nodes) {
    for (const ValueId id : node.inputs) {
      const NodeId producer = function.values[index(id)].producer;
      if (!is_backward(node) && producer >= 0 && function.nodes[index(producer)].layer != node.layer) {
        leaving[index(id)] = true;
      }
    }
  }
  return leaving;
}

/// Of each value, whether backward reads it as forward left it.
std::vector<bool> choose_kept(const Function& function, Remat remat, std::int32_t layers) {
  const std::vector<bool> leaving = leaving_layers(function);
  std::vector<bool> kept(function.values.size(), true);
  // Values that backward has without keeping more: states, values that it reads anyway, and values computed from both.
  std::vector<bool> available = read_by_backward(function);
  for (std::size_t v = 0; v < function.values.size(); ++v) {
    available[v] = available[v] || function.values[v].state >= 0;
  }
  for (const Node& node : function.nodes) {
    if (remat == Remat::none || node.layer < 0 || node.layer >= layers || is_backward(node)) {
      continue;
    }
    const bool follows =
        std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return available[index(id)]; });
    const bool again = remat == Remat::layer || (node.op->cheap && follows);
    for (const ValueId id : node.outputs) {
      kept[index(id)] = !again || leaving[index(id)];
      available[index(id)] = available[index(id)] || !kept[index(id)];
    }
  }
  return kept;
}

/// Copies a function node by node, and inserts the clones.
class Rewriting {
 public:
  Rewriting(const Function& function, const std::vector<bool>& kept)
      : function_(function),
        kept_(kept),
        now_(function.values.size(), no_value),
        again_(function.values.size(), no_value) {}

  Function run() {
    made_.name = function_.name;
    made_.role = function_.role;
    made_.rows = function_.rows;
    for (const Node& node : function_.nodes) {
      add_given_before(index(node.outputs.front()));
      add(node);
    }
    add_given_before(function_.values.size());
    for (const Port& port : function_.inputs) {
      made_.inputs.push_back({port.name, now_[index(port.value)]});
    }
    for (const Port& port : function_.outputs) {
      made_.outputs.push_back({port.name, now_[index(port.value)]});
    }
    for (const StateWrite& write : function_.writes) {
      made_.writes.push_back({write.state, now_[index(write.value)], write.mode});
    }
    return std::move(made_);
  }

 private:
  /// Inputs and state reads, which stay before the same nodes.
  void add_given_before(std::size_t end) {
    for (; next_given_ < end; ++next_given_) {
      if (function_.values[next_given_].producer < 0) {
        now_[next_given_] = static_cast<ValueId>(made_.values.size());
        made_.values.push_back(function_.values[next_given_]);
      }
    }
  }

  void add(Node node) {
    for (ValueId& id : node.inputs) {
      id = is_backward(node) ? in_backward(id) : now_[index(id)];
    }
    append(std::move(node), now_, "");
  }

  ValueId in_backward(ValueId id) {
    if (kept_[index(id)]) {
      return now_[index(id)];
    }
    if (again_[index(id)] == no_value) {
      clone(function_.nodes[index(function_.values[index(id)].producer)]);
    }
    return again_[index(id)];
  }

  void clone(Node node) {
    for (ValueId& id : node.inputs) {
      id = in_backward(id);
    }
    node.phase = Phase::backward_input;
    append(std::move(node), again_, "recompute/");
  }

  /// `results` learns which value is which.
  void append(Node node, std::vector<ValueId>& results, const std::string& prefix) {
    node.name = prefix + node.name;
    for (ValueId& id : node.outputs) {
      Value value = function_.values[index(id)];
      value.name = prefix + value.name;
      value.producer = static_cast<NodeId>(made_.nodes.size());
      results[index(id)] = static_cast<ValueId>(made_.values.size());
      made_.values.push_back(std::move(value));
      id = results[index(id)];
    }
    made_.nodes.push_back(std::move(node));
  }

  const Function& function_;
  const std::vector<bool>& kept_;
  std::vector<ValueId> now_;    ///< per value, its number in the new function
  std::vector<ValueId> again_;  ///< of each value, the result of its clone
  std::size_t next_given_ = 0;
  Function made_ = {};
};

}  // namespace

Function rematerialize(const Function& function, Remat remat, std::int32_t layers) {
  return Rewriting(function, choose_kept(function, remat, layers)).run();
}

}  // namespace shardrun::graph
