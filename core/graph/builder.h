#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Writes one function. Values are made by `call`; names are prefixed by the scopes open at the time.
class FunctionBuilder {
 public:
  FunctionBuilder(Graph& graph, std::string name, Role role, std::int64_t rows);

  [[nodiscard]] ValueId input(std::string name, TensorType type);
  /// The value that a state has when the function begins.
  [[nodiscard]] ValueId state(StateId id);
  [[nodiscard]] ValueId state(std::string_view name);

  /// One node of the named op. The first form is for ops with one result.
  /// The node's name is `name` behind the open scopes. Without one it is, of these the first that there is:
  /// - what name_unnamed() has set;
  /// - the unit of the first parameter that the node reads: `layer.0/mlp/up` for `layer.0/mlp/up/weights`;
  /// - the op's name behind the open scopes.
  /// A name that is taken is followed by the op's, or by a number. Random numbers do not depend on it.
  /// Throws Error{shape_mismatch} naming the node and its operands.
  [[nodiscard]] ValueId call(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {},
                             std::string name = {});
  [[nodiscard]] std::vector<ValueId> call_all(std::string_view op, std::vector<ValueId> inputs,
                                              Attributes attributes = {}, std::string name = {});

  void output(std::string name, ValueId value);
  void write(StateId state, ValueId value, StateWrite::Mode mode);
  /// Names a value, and the node that makes it, as a place where a strategy may decide its placement.
  void cut_point(std::string name, ValueId value);

  [[nodiscard]] const TensorType& type(ValueId value) const;
  [[nodiscard]] const Function& function() const noexcept { return function_; }
  [[nodiscard]] Graph& graph() noexcept { return graph_; }

  /// The name of nodes that are given none, until it is empty again.
  void name_unnamed(std::string name) { unnamed_ = std::move(name); }
  void set_phase(Phase phase) noexcept { phase_ = phase; }
  void set_layer(std::int32_t layer) noexcept { layer_ = layer; }

  /// Adds the function to the graph. Call once, last.
  void finish();

 private:
  friend class Scope;
  [[nodiscard]] StateId find_state(std::string_view name);
  [[nodiscard]] std::string default_name(std::string_view op, const std::vector<ValueId>& inputs) const;
  [[nodiscard]] std::string untaken(std::string name, std::string_view op);

  Graph& graph_;
  Function function_;
  std::string prefix_;
  std::unordered_map<StateId, ValueId> state_values_;
  std::unordered_map<std::string, StateId> state_ids_;  ///< of the graph's first states, as many as have been asked for
  std::size_t indexed_states_ = 0;
  std::string unnamed_;
  std::unordered_map<std::string, int> names_;  ///< of nodes, and how often each has been asked for
  std::unordered_set<std::string> cut_points_;  ///< the graph's
  Phase phase_ = Phase::forward;
  std::int32_t layer_ = -1;
};

/// Prefixes the names of values made while it lives: `layer.3/`.
class Scope {
 public:
  Scope(FunctionBuilder& builder, std::string_view name);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  FunctionBuilder& builder_;
  std::size_t length_;
};

/// Adds backward nodes for the scalar `loss`, then one `accumulate` write per contribution to a parameter's gradient
/// (its state `gradients/<parameter>` is declared here). Contributions to a tied parameter are added one by one, so
/// that none is kept.
void differentiate(FunctionBuilder& builder, ValueId loss);

}  // namespace shardrun::graph
