#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/op.h"

namespace shardrun::graph {

using StateId = std::int32_t;
using NodeId = std::int32_t;

/// Whose share of memory a state tensor counts towards.
enum class StateKind : std::uint8_t {
  parameter,
  gradient,
  optimizer,
  metric,
  field,
  hook_state,  ///< what a strategy's hook keeps with a parameter, or with its gradient
};

/// How a state tensor begins. Normal draws are keyed by (seed, tensor name, element index): the same on any sharding.
struct Initializer {
  enum class Kind : std::uint8_t {
    constant,
    normal,
    gaussian_bump,
    parameter,  ///< as the state's `of_parameter`
  } kind = Kind::constant;
  double value = 0;  ///< the constant, or the standard deviation (normal), or the width as a share of the axis (bump)
};

/// A tensor that lives between calls of functions.
struct State {
  std::string name = {};
  TensorType type = {};
  StateKind kind = StateKind::parameter;
  Initializer initializer = {};
  bool decay = false;         ///< weight decay applies: matrices and embeddings, not gains and biases
  std::int32_t layer = -1;    ///< the repeated layer it belongs to, or -1
  StateId of_parameter = -1;  ///< of gradients, optimizer and hook states: whose
  bool of_gradient = false;   ///< of hook states: kept with the gradient and placed as that, not as the parameter
};

/// Which part of training a node belongs to. A schedule may place the two parts of backward apart.
enum class Phase : std::uint8_t { forward, backward_input, backward_weight, update };

struct Node {
  const Op* op = nullptr;
  std::string name;
  Attributes attributes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  ShardingRule rule;
  Phase phase = Phase::forward;
  std::int32_t layer = -1;  ///< −1: before the first; Graph::layers: behind the last
};

struct Value {
  std::string name = {};
  std::string cut_point = {};  ///< that it stands at; empty: none
  TensorType type = {};
  NodeId producer = -1;  ///< -1: an input, or a state read
  StateId state = -1;    ///< the state that this reads, as it was when the function began
};

/// What becomes of a state at the end of a function.
struct StateWrite {
  enum class Mode : std::uint8_t {
    assign,      ///< state = value
    accumulate,  ///< state = (first microbatch ? 0 : state) + value
    add,         ///< state = state + value
    first,       ///< state = value, before others are added
  };
  StateId state = -1;
  ValueId value = no_value;
  Mode mode = Mode::assign;
};

/// A tensor that the host writes before a call, or reads after it.
struct Port {
  std::string name = {};
  ValueId value = no_value;
};

/// When a run calls a function.
enum class Role : std::uint8_t {
  repeated,   ///< for each microbatch of a step
  once,       ///< once a step, after the microbatches
  on_demand,  ///< when it is asked for by its name
};

/// A pure function of inputs, state and run-time scalars: values in order of definition, no ranks, no buffers.
/// Several functions may bear one name and differ in `rows` (a batch that does not divide evenly).
/// A graph has at most one name in each of the roles `repeated` and `once`.
struct Function {
  std::string name;
  Role role = Role::on_demand;
  std::int64_t rows = 0;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::vector<StateWrite> writes;
};

/// A value that a strategy may place by name: `layer.3/residual`.
struct CutPoint {
  std::string name = {};
  std::int32_t layer = -1;
};

struct Graph {
  std::string model;
  std::vector<State> states;
  std::vector<Function> functions;
  std::vector<CutPoint> cut_points;
  std::int32_t layers = 0;  ///< repeated ones, as models mark them

  /// Null when there is none.
  [[nodiscard]] const Function* find(std::string_view function, std::int64_t rows) const noexcept;
  /// REQUIRES: not on_demand.
  [[nodiscard]] const Function* find(Role role, std::int64_t rows = 0) const noexcept;
  [[nodiscard]] StateId find_state(std::string_view name) const noexcept;
};

[[nodiscard]] const char* to_string(StateKind kind) noexcept;
[[nodiscard]] const char* to_string(Phase phase) noexcept;
[[nodiscard]] std::string to_string(const Graph& graph);

/// Elements of all parameters; a tied tensor counts once.
[[nodiscard]] std::int64_t parameter_count(const Graph& graph) noexcept;
[[nodiscard]] std::int64_t flops(const Function& function, const Node& node);
[[nodiscard]] double flops(const Function& function);  ///< may be beyond 64 bits

}  // namespace shardrun::graph
