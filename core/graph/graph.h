#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/op.h"

namespace shardrun::graph {

using StateId = Id<struct StateTag>;
using NodeId = Id<struct NodeTag>;

/// The category of memory that a state counts towards.
enum class StateKind : std::uint8_t {
  parameter,
  gradient,
  optimizer,
  metric,
  field,
  output,      ///< given by a function for the host to save; nothing reads it
  hook_state,  ///< kept by a strategy's hook with a parameter, or with its gradient
};

/// The first values of a state. Normal draws are keyed by (seed, name of a state, element index), so they do not depend
/// on the sharding.
struct Initializer {
  enum class Kind : std::uint8_t {
    constant,
    normal,
    gaussian_bump,
    uniform,   ///< from 0 to `value`
    chance,    ///< 1 with probability `value`, else 0
    counting,  ///< 1, 2, 3, … times `value`
  } kind = Kind::constant;
  double value = 0;  ///< the constant, the standard deviation (normal), or the width as a share of the axis (bump)
  std::string stream = {};  ///< the state whose random stream it uses; empty: its own
};

/// A tensor that lives between calls of functions.
struct State {
  std::string name = {};
  TensorType type = {};
  StateKind kind = StateKind::parameter;
  Initializer initializer = {};
  bool decay = false;         ///< weight decay applies: matrices and embeddings, not gains and biases
  std::int32_t layer = -1;    ///< the repeated layer it belongs to, or -1
  StateId of_parameter = {};  ///< the parameter of a gradient, optimizer state or hook state
  StateId master = {};        ///< of a bf16 parameter: its float32 copy, which the optimizer updates
  bool of_gradient = false;  ///< a hook state that is kept with the gradient and placed like it, not like the parameter
};

/// The part of training that a node belongs to. A schedule may separate the two parts of backward.
enum class Phase : std::uint8_t { forward, backward_input, backward_weight, update };

struct Node {
  const Op* op = nullptr;
  std::string name;
  Attributes attributes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  ShardingRule rule;
  Phase phase = Phase::forward;
  std::int32_t layer = -1;  ///< −1: before the first layer; Graph::layers: after the last
};

struct Value {
  std::string name = {};
  std::string cut_point = {};  ///< the value's cut point; empty: none
  TensorType type = {};
  NodeId producer = {};  ///< none: an input, or a state read
  StateId state = {};    ///< the state that this reads, as of the start of the function
};

/// How a function changes a state at its end.
struct StateWrite {
  enum class Mode : std::uint8_t {
    assign,      ///< state = value
    accumulate,  ///< state = (first microbatch ? 0 : state) + value
    add,         ///< state = state + value
    first,       ///< state = value, before other writes add to it
  };
  StateId state = {};
  ValueId value = {};
  Mode mode = Mode::assign;
};

/// A tensor that the host writes before a call or reads after it.
struct Port {
  std::string name = {};
  ValueId value = {};
};

/// When a run calls a function.
enum class Role : std::uint8_t {
  repeated,   ///< for each microbatch of a step
  once,       ///< once a step, after the microbatches
  on_demand,  ///< when it is requested by its name
};

/// A pure function of inputs, state and run-time scalars: values in order of definition, without ranks and buffers.
/// Functions may share a name and differ in `rows` (a batch that does not divide evenly). A graph has at most one name
/// in each of the roles `repeated` and `once`.
struct Function {
  std::string name;
  Role role = Role::on_demand;
  std::int64_t rows = 0;
  IdVector<ValueId, Value> values;
  IdVector<NodeId, Node> nodes;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::vector<StateWrite> writes;
  bool gathers_again = false;  ///< backward gathers again what ranks have gathered of forward's results
};

/// A value that a strategy may place by name: `layer.3/residual`.
struct CutPoint {
  std::string name = {};
  std::int32_t layer = -1;
};

struct Graph {
  std::string model;
  IdVector<StateId, State> states;
  std::vector<Function> functions;
  std::vector<CutPoint> cut_points;
  std::int32_t layers = 0;  ///< number of repeated layers, as the model marks them

  /// Null if there is none.
  [[nodiscard]] const Function* find(std::string_view function, std::int64_t rows) const noexcept;
  /// REQUIRES: not on_demand.
  [[nodiscard]] const Function* find(Role role, std::int64_t rows = 0) const noexcept;
  /// The default id if there is none.
  [[nodiscard]] StateId find_state(std::string_view name) const noexcept;
  /// Adds a state of the model. Throws Error{plugin}, naming both, if the graph has one of that name.
  StateId add_state(State state);
  /// The float32 copy of a parameter that the optimizer updates (mixed precision); without one, the parameter.
  [[nodiscard]] StateId master_of(StateId parameter) const noexcept;
};

[[nodiscard]] const char* to_string(StateKind kind) noexcept;
[[nodiscard]] const char* to_string(Phase phase) noexcept;
[[nodiscard]] const char* to_string(Role role) noexcept;
[[nodiscard]] std::string to_string(const Graph& graph);

/// Elements of all parameters. A tied tensor counts once.
[[nodiscard]] std::int64_t parameter_count(const Graph& graph) noexcept;
[[nodiscard]] std::int64_t flops(const Function& function, const Node& node);
[[nodiscard]] double flops(const Function& function);  ///< may exceed 64 bits

}  // namespace shardrun::graph
