#include "core/graph/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace shardrun::graph {

const Function* Graph::find(std::string_view function, std::int64_t rows) const noexcept {
  const auto found =
      std::ranges::find_if(functions, [&](const Function& each) { return each.name == function && each.rows == rows; });
  return found == functions.end() ? nullptr : &*found;
}

const Function* Graph::find(Role role, std::int64_t rows) const noexcept {
  const auto found =
      std::ranges::find_if(functions, [&](const Function& each) { return each.role == role && each.rows == rows; });
  return found == functions.end() ? nullptr : &*found;
}

StateId Graph::find_state(std::string_view name) const noexcept {
  for (const StateId id : states.ids()) {
    if (states[id].name == name) {
      return id;
    }
  }
  return {};
}

StateId Graph::master_of(StateId parameter) const noexcept {
  const StateId master = states[parameter].master;
  return master.exists() ? master : parameter;
}

namespace {

/// For example "the optimizer state of parameter 'w'".
std::string described(const Graph& graph, const State& state) {
  const std::string kind = to_string(state.kind);
  return state.of_parameter.exists()
             ? fmt::format("the {}{} of parameter '{}'", kind, state.kind == StateKind::optimizer ? " state" : "",
                           graph.states[state.of_parameter].name)
             : fmt::format("the {} '{}'", kind, state.name);
}

}  // namespace

StateId Graph::add_state(State state) {
  if (const StateId known = find_state(state.name); known.exists()) {
    throw Error(ErrorCode::plugin,
                fmt::format("model {}: {} and {} have one name, '{}': the model has to call its own otherwise", model,
                            described(*this, states[known]), described(*this, state), state.name));
  }
  return states.push_back(std::move(state));
}

const char* to_string(StateKind kind) noexcept {
  switch (kind) {
    case StateKind::parameter: return "parameter";
    case StateKind::gradient: return "gradient";
    case StateKind::optimizer: return "optimizer";
    case StateKind::metric: return "metric";
    case StateKind::field: return "field";
    case StateKind::cache: return "cache";
    case StateKind::output: return "output";
    case StateKind::hook_state: return "hook state";
  }
  return "?";
}

const char* to_string(Phase phase) noexcept {
  switch (phase) {
    case Phase::forward: return "forward";
    case Phase::backward_input: return "backward_input";
    case Phase::backward_weight: return "backward_weight";
    case Phase::update: return "update";
  }
  return "?";
}

const char* to_string(Role role) noexcept {
  switch (role) {
    case Role::repeated: return "repeated";
    case Role::once: return "once";
    case Role::on_demand: return "on_demand";
  }
  return "?";
}

namespace {

const char* to_string(StateWrite::Mode mode) noexcept {
  switch (mode) {
    case StateWrite::Mode::assign: return "=";
    case StateWrite::Mode::accumulate: return "+= (fresh on the first microbatch)";
    case StateWrite::Mode::first: return "first";
    case StateWrite::Mode::add: return "+=";
  }
  return "?";
}

void print(std::string& text, const Graph& graph, const Function& function) {
  const auto name = [&](ValueId id) -> const std::string& { return function.values[id].name; };
  text += fmt::format("\nfunction {} rows {}: {} nodes, {} FLOPs\n", function.name, function.rows,
                      function.nodes.size(), flops(function));
  for (const Port& port : function.inputs) {
    text += fmt::format("  input {} {}\n", port.name, to_string(function.values[port.value].type));
  }
  for (const Node& node : function.nodes) {
    std::string results;
    for (const ValueId id : node.outputs) {
      const Value& value = function.values[id];
      results += fmt::format("{}{} {}", results.empty() ? "" : ", ", value.name, to_string(value.type));
    }
    std::string operands;
    for (const ValueId id : node.inputs) {
      operands += (operands.empty() ? "" : ", ") + name(id);
    }
    text += fmt::format("  {} = {}({}){}  [{}; {}]\n", results, node.op->name, operands, to_string(node.attributes),
                        to_string(node.phase), to_string(node.rule));
  }
  for (const StateWrite& write : function.writes) {
    text += fmt::format("  state {} {} {}\n", graph.states[write.state].name, to_string(write.mode), name(write.value));
  }
  for (const Port& port : function.outputs) {
    text += fmt::format("  output {} = {}\n", port.name, name(port.value));
  }
}

}  // namespace

std::string to_string(const Graph& graph) {
  std::string text =
      fmt::format("model {}: {} parameters, {} layers\n", graph.model, parameter_count(graph), graph.layers);
  for (const State& state : graph.states) {
    text += fmt::format("state {} {} {}{} begins {} {}{} layer {}\n", state.name, to_string(state.type),
                        to_string(state.kind), state.decay ? " decay" : "", static_cast<int>(state.initializer.kind),
                        state.initializer.value, state.initializer.stream.empty() ? "" : " " + state.initializer.stream,
                        state.layer);
  }
  for (const CutPoint& point : graph.cut_points) {
    text += fmt::format("cut point {}\n", point.name);
  }
  for (const Function& function : graph.functions) {
    print(text, graph, function);
  }
  return text;
}

std::int64_t parameter_count(const Graph& graph) noexcept {
  std::int64_t count = 0;
  for (const State& state : graph.states) {
    count += state.kind == StateKind::parameter && !state.of_parameter.exists() ? element_count(state.type) : 0;
  }
  return count;
}

std::int64_t flops(const Function& function, const Node& node) {
  std::vector<TensorType> inputs;
  std::vector<TensorType> outputs;
  for (const ValueId id : node.inputs) {
    inputs.push_back(function.values[id].type);
  }
  for (const ValueId id : node.outputs) {
    outputs.push_back(function.values[id].type);
  }
  return flops(*node.op, {node.attributes, inputs, outputs});
}

double flops(const Function& function) {
  double total = 0;
  for (const Node& node : function.nodes) {
    total += static_cast<double>(flops(function, node));
  }
  return total;
}

}  // namespace shardrun::graph
