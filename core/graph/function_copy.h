#pragma once

#include <string>

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Copies a function node by node, so that a transformation can add nodes in between and change the copied ones.
class FunctionCopy {
 public:
  /// REQUIRES: `function` outlives the copy.
  explicit FunctionCopy(const Function& function) : function_(function), values_(function.values.size()) {
    made_.name = function.name;
    made_.role = function.role;
    made_.rows = function.rows;
    made_.gathers_again = function.gathers_again;
  }

  /// For each value of the original, its copy, once it exists.
  [[nodiscard]] IdVector<ValueId, ValueId>& values() noexcept { return values_; }
  [[nodiscard]] Function& made() noexcept { return made_; }
  [[nodiscard]] const TensorType& type(ValueId made) const { return made_.values[made].type; }

  /// Copies the inputs and state reads that precede value `end` of the original, unless they are copied already. So
  /// they keep their places between the nodes.
  void add_given_before(ValueId end) {
    for (const ValueId id : IdRange(next_given_, end)) {
      if (!function_.values[id].producer.exists()) {
        values_[id] = made_.values.push_back(function_.values[id]);
      }
    }
    next_given_ = end;
  }

  /// Adds a node whose inputs are values of the copy and whose outputs are values of the original. `results`: receives
  /// the copy of each output. `prefix`: is put before the names.
  void append(Node node, IdVector<ValueId, ValueId>& results, const std::string& prefix = {}) {
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

  /// Copies ports and writes, and returns the function. Call once, last.
  [[nodiscard]] Function finish() {
    add_given_before(function_.values.next());
    for (const Port& port : function_.inputs) {
      made_.inputs.push_back({port.name, values_[port.value]});
    }
    for (const Port& port : function_.outputs) {
      made_.outputs.push_back({port.name, values_[port.value]});
    }
    for (const StateWrite& write : function_.writes) {
      made_.writes.push_back({write.state, values_[write.value], write.mode});
    }
    return std::move(made_);
  }

 private:
  const Function& function_;
  IdVector<ValueId, ValueId> values_;
  ValueId next_given_ = ValueId(0);
  Function made_ = {};
};

}  // namespace shardrun::graph
