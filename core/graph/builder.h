#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/graph/graph.h"

namespace shardrun::graph {

/// Builds one function. call() adds nodes; the open scopes are a prefix of their names.
class FunctionBuilder {
 public:
  FunctionBuilder(Graph& graph, std::string name, Role role, std::int64_t rows);

  [[nodiscard]] ValueId input(std::string name, TensorType type);
  /// The value that a state has when the function begins.
  [[nodiscard]] ValueId state(StateId id);
  [[nodiscard]] ValueId state(std::string_view name);

  /// Adds a node of the named op. The first form is for ops with one result. The node's name is `name`, prefixed by the
  /// open scopes. Without `name` it is the first of these that exists:
  /// - the name set by name_unnamed();
  /// - the unit of the first parameter that the node reads: `layer.0/mlp/up` for `layer.0/mlp/up/weights`;
  /// - the op's name, prefixed by the open scopes.
  /// If the name is taken, the op's name or a number is appended. Random numbers do not depend on names. Throws
  /// Error{shape_mismatch} naming the node and its operands.
  [[nodiscard]] ValueId call(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {},
                             std::string name = {});
  [[nodiscard]] std::vector<ValueId> call_all(std::string_view op, std::vector<ValueId> inputs,
                                              Attributes attributes = {}, std::string name = {});

  /// From now on take_position takes all positions of one row, as if each were a row of the batch: [batch 1, seq, …]
  /// becomes [batch, …].
  void take_all_positions() noexcept { takes_all_positions_ = true; }
  /// The same with only `count` positions of the row. finish() adds the function's last input, `input` [count], which
  /// has their indices.
  void take_positions(std::string input, std::int64_t count);
  /// How many results take_position has: `rows`, unless it takes several of the `length` positions of one row.
  [[nodiscard]] std::int64_t positions_taken(std::int64_t rows, std::int64_t length) const {
    return !takes_all_positions_ ? rows : positions_ ? type(positions_->value).shape.front() : length;
  }

  void output(std::string name, ValueId value);
  /// Adds a state for each output, to which the function writes it, so that the host can save it. The state's name is
  /// the output's name followed by `suffix`. Throws Error{shape_mismatch} if a state has that name already, or if the
  /// output has integers.
  void keep_outputs(const std::string& suffix = "");
  void write(StateId state, ValueId value, StateWrite::Mode mode);
  /// Names a value, so that a strategy may decide its placement. Throws Error{shape_mismatch} if another value of the
  /// function has that name.
  void cut_point(std::string name, ValueId value);

  [[nodiscard]] const TensorType& type(ValueId value) const;
  [[nodiscard]] const Function& function() const noexcept { return function_; }
  [[nodiscard]] Graph& graph() noexcept { return graph_; }

  /// Sets the name that unnamed nodes get from now on; "" for none.
  void name_unnamed(std::string name) { unnamed_ = std::move(name); }
  [[nodiscard]] Phase phase() const noexcept { return phase_; }
  void set_phase(Phase phase) noexcept { phase_ = phase; }
  [[nodiscard]] std::int32_t layer() const noexcept { return layer_; }
  void set_layer(std::int32_t layer) noexcept { layer_ = layer; }
  /// Replaces all open scopes by this one; "" for none.
  void set_scope(std::string_view scope);

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
  std::unordered_map<std::string, StateId> state_ids_;  ///< ids of the graph's states before `next_unindexed_`
  StateId next_unindexed_ = StateId(0);
  std::string unnamed_;
  std::unordered_map<std::string, int> names_;  ///< names of nodes, and how often each was requested
  std::unordered_set<std::string> cut_points_;  ///< names of the graph's cut points
  Phase phase_ = Phase::forward;
  std::int32_t layer_ = -1;
  bool takes_all_positions_ = false;
  std::optional<Port> positions_;  ///< those that are taken; nothing: all
};

/// Prefixes the names of values made during its lifetime: `layer.3/`.
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

/// The parts of which a model's loss is computed.
struct Losses {
  ValueId values = {};  ///< values of the loss; equally many for each sample
  ValueId counts = {};  ///< the sum of `values` is divided by the sum of these; none: by the number of values
};

/// Adds backward nodes for the scalar `loss`, then one `accumulate` write per contribution to a parameter's gradient.
/// Declares the state `gradients/<parameter>`. A parameter that several layers share gets several contributions. They
/// are written one by one, so that none has to be kept.
void differentiate(FunctionBuilder& builder, ValueId loss);

/// Adds nodes for the gradient of a scalar with respect to each value of `of`, and returns the gradients. The nodes
/// have the builder's current phase. A gradient is zero if the scalar does not depend on the value. Throws
/// Error{shape_mismatch} if `scalar` is not a scalar, or if an op between it and a value has no gradient.
[[nodiscard]] std::vector<ValueId> gradients(FunctionBuilder& builder, ValueId scalar, const std::vector<ValueId>& of);

}  // namespace shardrun::graph
