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

/// Builds one function. call() adds nodes. Open scopes (class Scope) put a prefix before the names that are given.
class FunctionBuilder {
 public:
  FunctionBuilder(Graph& graph, std::string name, Role role, std::int64_t rows);

  [[nodiscard]] ValueId input(std::string name, TensorType type);
  /// The value that a state has when the function begins. Throws Error{internal} if no state has the name.
  [[nodiscard]] ValueId state(StateId id);
  [[nodiscard]] ValueId state(std::string_view name);

  /// Adds a node of the named op. The first form is for ops with one result. The node's name is `name`, prefixed by the
  /// open scopes. Without `name` it is the first of these that exists:
  /// - the name set by name_unnamed();
  /// - the unit of the first parameter that the node reads: `layer.0/mlp/up` for `layer.0/mlp/up/weights`;
  /// - the op's name, prefixed by the open scopes.
  /// If the name is taken, the op's name or a number is appended. Throws Error{shape_mismatch} if the operands or
  /// attributes do not fit, Error{job} if a result is too large, and Error{internal} if there is no such op.
  [[nodiscard]] ValueId call(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {},
                             std::string name = {});
  [[nodiscard]] std::vector<ValueId> call_all(std::string_view op, std::vector<ValueId> inputs,
                                              Attributes attributes = {}, std::string name = {});

  /// From now on the op take_position returns all positions of a single sequence, as if each were a row of the batch:
  /// [batch 1, seq s, …] becomes [batch s, …].
  void take_all_positions() noexcept { takes_all_positions_ = true; }
  /// Like take_all_positions(), but for only `count` positions of the sequence. Their indices are an i32 input [count]
  /// with the name `input`, which finish() adds as the function's last one.
  void take_positions(std::string input, std::int64_t count);
  /// The number of rows of take_position's result for `rows` sequences of `length` positions.
  [[nodiscard]] std::int64_t positions_taken(std::int64_t rows, std::int64_t length) const {
    return !takes_all_positions_ ? rows : positions_ ? type(positions_->value).shape.front() : length;
  }

  void output(std::string name, ValueId value);
  /// Replaces each output by a state that the function writes, so that the host can save it. The state's name is the
  /// output's name followed by `suffix`. Throws Error{shape_mismatch} if a state already has that name, or if the
  /// output is not f32.
  void keep_outputs(const std::string& suffix = "");
  void write(StateId state, ValueId value, StateWrite::Mode mode);
  /// Names a value, so that a strategy can decide its placement. The open scopes are put before the name. Throws
  /// Error{shape_mismatch} if another value of the function is the cut point of that name.
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
  std::optional<Port> positions_;  ///< the input of take_positions(); nothing: all positions are taken
};

/// Puts a prefix, such as `layer.3/`, before the names given to nodes and cut points during its lifetime.
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

/// The values from which a model's loss is computed.
struct Losses {
  ValueId values = {};  ///< values of the loss; equally many for each sample
  ValueId counts = {};  ///< the loss is the sum of `values` over the sum of these; no id: over the number of values
};

/// Adds backward nodes for the scalar `loss`. Adds the gradient of each parameter P to the state `gradients/P`. If
/// several layers share P, each contribution is written as soon as it exists, so that none has to be kept: the first
/// with mode `accumulate`, the others with `add`. Throws Error{shape_mismatch} if an op on the way has no gradient.
void differentiate(FunctionBuilder& builder, ValueId loss);

/// Adds nodes for the gradient of a scalar with respect to each value of `of`, and returns the gradients. The nodes
/// have the builder's current phase. A gradient is zero if the scalar does not depend on the value. Throws
/// Error{shape_mismatch} if `scalar` is not a scalar, or if an op between it and a value has no gradient.
[[nodiscard]] std::vector<ValueId> gradients(FunctionBuilder& builder, ValueId scalar, const std::vector<ValueId>& of);

}  // namespace shardrun::graph
