#include "core/graph/builder.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardrun::graph {

FunctionBuilder::FunctionBuilder(Graph& graph, std::string name, Role role, std::int64_t rows) : graph_(graph) {
  function_.name = std::move(name);
  function_.role = role;
  function_.rows = rows;
}

const TensorType& FunctionBuilder::type(ValueId value) const { return function_.values.at(value).type; }

ValueId FunctionBuilder::input(std::string name, TensorType type) {
  require_countable(type, name);
  const ValueId id = function_.values.push_back({.name = name, .type = std::move(type)});
  function_.inputs.push_back({.name = std::move(name), .value = id});
  return id;
}

ValueId FunctionBuilder::state(StateId id) {
  const auto known = state_values_.find(id);
  if (known != state_values_.end()) {
    return known->second;
  }
  const State& state = graph_.states.at(id);
  const ValueId value = function_.values.push_back({.name = state.name, .type = state.type, .state = id});
  state_values_.emplace(id, value);
  return value;
}

/// Adds new states to the index first, because models declare states while they write functions.
StateId FunctionBuilder::find_state(std::string_view name) {
  for (const StateId id : IdRange(next_unindexed_, graph_.states.next())) {
    state_ids_.emplace(graph_.states[id].name, id);
  }
  next_unindexed_ = graph_.states.next();
  const auto found = state_ids_.find(std::string(name));
  return found == state_ids_.end() ? StateId{} : found->second;
}

ValueId FunctionBuilder::state(std::string_view name) {
  const StateId id = find_state(name);
  if (!id.exists()) {
    throw Error(ErrorCode::internal, fmt::format("function {}: no state is called '{}'", function_.name, name));
  }
  return state(id);
}

std::string FunctionBuilder::default_name(std::string_view op, const std::vector<ValueId>& inputs) const {
  if (!unnamed_.empty()) {
    return unnamed_;
  }
  for (const ValueId id : inputs) {
    const StateId read = function_.values.at(id).state;
    if (read.exists() && graph_.states[read].kind == StateKind::parameter) {
      const std::string& parameter = graph_.states[read].name;
      const std::size_t unit = parameter.rfind('/');
      return unit == std::string::npos ? fmt::format("{}/{}", parameter, op) : parameter.substr(0, unit);
    }
  }
  return fmt::format("{}{}", prefix_, op);
}

std::string FunctionBuilder::untaken(std::string name, std::string_view op) {
  if (names_.contains(name) && name.substr(name.rfind('/') + 1) != op) {
    name += fmt::format("/{}", op);
  }
  std::string found = name;
  while (names_.contains(found)) {
    found = fmt::format("{}_{}", name, ++names_.try_emplace(name, 1).first->second);
  }
  names_.emplace(found, 1);
  return found;
}

std::vector<ValueId> FunctionBuilder::call_all(std::string_view op_name, std::vector<ValueId> inputs,
                                               Attributes attributes, std::string name) {
  if (takes_all_positions_ && op_name == "take_position") {
    const TensorType& x = type(inputs.front());
    const std::vector<std::int64_t> shape(x.shape.begin() + 1, x.shape.end());
    const std::string others = fmt::format("{}", fmt::join(x.axes.begin() + 2, x.axes.end(), " "));
    Attributes reshaped = {{"shape", shape}, {"axes", x.axes.front() + " " + others}};
    if (!positions_) {
      return call_all("reshape", std::move(inputs), std::move(reshaped), std::move(name));
    }
    return call_all("embedding", {positions_->value, call("reshape", std::move(inputs), std::move(reshaped))}, {},
                    std::move(name));
  }
  Node node;
  node.op = &find_op(op_name);
  node.name = untaken(name.empty() ? default_name(op_name, inputs) : prefix_ + name, op_name);
  std::vector<TensorType> types;
  for (const ValueId id : inputs) {
    types.push_back(type(id));
  }
  const std::string what = fmt::format("function {}, node {} ({})", function_.name, node.name, op_name);
  node.rule = node.op->rule(attributes, types);
  std::vector<TensorType> results = infer_types(node.rule, types, what);
  for (const TensorType& result : results) {
    require_countable(result, node.name);
  }
  node.attributes = std::move(attributes);
  node.inputs = std::move(inputs);
  node.phase = phase_;
  node.layer = layer_;
  for (std::size_t o = 0; o < results.size(); ++o) {
    node.outputs.push_back(function_.values.push_back({.name = o == 0 ? node.name : fmt::format("{}.{}", node.name, o),
                                                       .type = std::move(results[o]),
                                                       .producer = function_.nodes.next()}));
  }
  function_.nodes.push_back(std::move(node));
  return function_.nodes.back().outputs;
}

ValueId FunctionBuilder::call(std::string_view op, std::vector<ValueId> inputs, Attributes attributes,
                              std::string name) {
  const std::vector<ValueId> outputs = call_all(op, std::move(inputs), std::move(attributes), std::move(name));
  if (outputs.size() != 1) {
    throw Error(ErrorCode::internal, fmt::format("op {} has {} results where one is taken", op, outputs.size()));
  }
  return outputs.front();
}

void FunctionBuilder::output(std::string name, ValueId value) {
  function_.outputs.push_back({.name = std::move(name), .value = value});
}

void FunctionBuilder::keep_outputs(const std::string& suffix) {
  for (Port port : std::exchange(function_.outputs, {})) {
    port.name += suffix;
    if (graph_.find_state(port.name).exists() || type(port.value).dtype != DType::f32) {
      throw Error(
          ErrorCode::shape_mismatch,
          fmt::format("function {}: output '{}', {}, cannot be kept: it needs a name that no state has, and f32",
                      function_.name, port.name, to_string(type(port.value))));
    }
    const StateId state =
        graph_.states.push_back({.name = port.name, .type = type(port.value), .kind = StateKind::output});
    // A state may be written earlier in the same call, so its value at the start is copied.
    const bool is_state = function_.values[port.value].state.exists();
    const ValueId kept = is_state ? call("copy", {port.value}, {}, "copy/" + port.name) : port.value;
    write(state, kept, StateWrite::Mode::assign);
  }
}

void FunctionBuilder::write(StateId state, ValueId value, StateWrite::Mode mode) {
  const TensorType& target = graph_.states.at(state).type;
  if (target.shape != type(value).shape || target.dtype != type(value).dtype) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("function {}: state {} is {}, but {} is written to it", function_.name,
                            graph_.states[state].name, to_string(target), to_string(type(value))));
  }
  function_.writes.push_back({.state = state, .value = value, .mode = mode});
}

void FunctionBuilder::cut_point(std::string name, ValueId value) {
  const std::string full = prefix_ + name;
  for (const ValueId id : function_.values.ids()) {
    if (id != value && function_.values[id].cut_point == full) {
      throw Error(ErrorCode::shape_mismatch,
                  fmt::format("function {}: two values are the cut point '{}'", function_.name, full));
    }
  }
  Value& at = function_.values.at(value);
  at.name = full;
  at.cut_point = full;
  if (at.producer.exists() && function_.nodes[at.producer].outputs.front() == value) {
    function_.nodes[at.producer].name = full;
    names_.emplace(full, 1);
  }
  for (std::size_t p = cut_points_.size(); p < graph_.cut_points.size(); ++p) {
    cut_points_.insert(graph_.cut_points[p].name);
  }
  if (cut_points_.insert(full).second) {
    graph_.cut_points.push_back({.name = full, .layer = layer_});
  }
}

void FunctionBuilder::set_scope(std::string_view scope) {
  prefix_ = scope.empty() ? std::string() : fmt::format("{}/", scope);
}

void FunctionBuilder::take_positions(std::string input, std::int64_t count) {
  const ValueId indices =
      function_.values.push_back({.name = input, .type = {.dtype = DType::i32, .shape = {count}, .axes = {"batch"}}});
  positions_ = {.name = std::move(input), .value = indices};
  take_all_positions();
}

void FunctionBuilder::finish() {
  if (positions_) {
    function_.inputs.push_back(*std::move(positions_));
  }
  graph_.functions.push_back(std::move(function_));
}

Scope::Scope(FunctionBuilder& builder, std::string_view name) : builder_(builder), length_(builder.prefix_.size()) {
  builder_.prefix_ += fmt::format("{}/", name);
}

Scope::~Scope() { builder_.prefix_.resize(length_); }

}  // namespace shardrun::graph
