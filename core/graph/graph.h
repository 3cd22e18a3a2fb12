#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/op.h"

namespace shardrun::graph {

using StateId = Id<struct StateTag>;
using NodeId = Id<struct NodeTag>;

/// The kind of a state. It decides how the state is placed, where its memory counts, and whether it is saved.
enum class StateKind : std::uint8_t {
  parameter,
  gradient,
  optimizer,
  metric,
  field,
  cache,       ///< keys or values of past tokens, in pages; begins with zeros and is never saved
  output,      ///< an output that a function leaves for the host to save; no function reads it
  hook_state,  ///< a state that a strategy's hook keeps for a parameter or for its gradient
};

/// Rule for a state's first values. Random numbers are keyed by (seed, state name or `stream`, element index), so they
/// do not depend on the sharding.
struct Initializer {
  enum class Kind : std::uint8_t {
    constant,
    normal,
    gaussian_bump,
    uniform,   ///< uniform between 0 and `value`
    chance,    ///< 1 with probability `value`, otherwise 0
    counting,  ///< 1, 2, 3, … times `value`
  } kind = Kind::constant;
  double value = 0;  ///< the constant, the standard deviation (normal), or the width as a share of the axis (bump)
  std::string stream = {};  ///< the state whose random numbers it uses; empty: its own
};

/// A tensor that lasts between calls of functions.
struct State {
  std::string name = {};
  TensorType type = {};
  StateKind kind = StateKind::parameter;
  Initializer initializer = {};
  /// Whether weight decay applies: true for matrices and embeddings, false for gains and biases.
  bool decay = false;
  std::int32_t layer = -1;    ///< the repeated layer to which it belongs; −1: none
  StateId of_parameter = {};  ///< for a gradient, optimizer state, hook state or scales of int8 weights: its parameter
  StateId master = {};        ///< for a bf16 parameter: its float32 copy, which the optimizer updates
  /// For int8 weights: the number of last dimensions that make a row, whose elements share scales in blocks.
  std::size_t contracted = 0;
  bool is_turned = false;    ///< for int8 weights: whether files have these dimensions first
  bool of_gradient = false;  ///< for a hook state: whether it is placed like the gradient instead of the parameter
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
  std::string cut_point = {};  ///< name of the value's cut point; empty: none
  TensorType type = {};
  NodeId producer = {};  ///< the node that makes it; none: it is an input or a state
  StateId state = {};    ///< the state that it reads, at the start of the function
};

/// How a function changes a state at its end.
struct StateWrite {
  enum class Mode : std::uint8_t {
    assign,      ///< state = value
    accumulate,  ///< state = (first microbatch ? 0 : state) + value
    add,         ///< state = state + value
    first,       ///< state = value, before other writes of the function add to it
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
  on_demand,  ///< when a command or setting asks for it by its name
};

/// A pure function of inputs, states and run-time scalars. Its values stand in the order of their definition. It knows
/// no ranks and no buffers. Functions that share a name differ in `rows`, because microbatches can differ in size. A
/// graph has at most one name for each of the roles `repeated` and `once`.
struct Function {
  std::string name;
  Role role = Role::on_demand;
  std::int64_t rows = 0;
  IdVector<ValueId, Value> values;
  IdVector<NodeId, Node> nodes;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::vector<StateWrite> writes;
  /// Whether backward gathers results of forward again, so that ranks do not keep gathered values.
  bool gathers_again = false;
};

/// A value whose placement a strategy can decide by its name, such as `layer.3/residual`.
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

  /// The function with this name and number of rows; null if there is none.
  [[nodiscard]] const Function* find(std::string_view function, std::int64_t rows) const noexcept;
  /// The function with this role and number of rows; null if there is none. REQUIRES: the role is not on_demand.
  [[nodiscard]] const Function* find(Role role, std::int64_t rows = 0) const noexcept;
  /// Returns the default id if no state has the name.
  [[nodiscard]] StateId find_state(std::string_view name) const noexcept;
  /// Adds a state. Throws Error{plugin}, naming both states, if the graph already has one of that name.
  StateId add_state(State state);
  /// In mixed precision: the float32 copy of the parameter that the optimizer updates. Otherwise the parameter itself.
  [[nodiscard]] StateId master_of(StateId parameter) const noexcept;
};

[[nodiscard]] const char* to_string(StateKind kind) noexcept;
[[nodiscard]] const char* to_string(Phase phase) noexcept;
[[nodiscard]] const char* to_string(Role role) noexcept;
[[nodiscard]] std::string to_string(const Graph& graph);

/// Number of elements of all parameters, without scales of int8 weights. A tied tensor counts once.
[[nodiscard]] std::int64_t parameter_count(const Graph& graph) noexcept;
[[nodiscard]] std::int64_t flops(const Function& function, const Node& node);
[[nodiscard]] double flops(const Function& function);  ///< a double, because the sum may exceed 64 bits

}  // namespace shardrun::graph
