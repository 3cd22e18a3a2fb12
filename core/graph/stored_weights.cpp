#include "core/graph/stored_weights.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/graph/function_copy.h"

namespace shardrun::graph {
namespace {

bool is_table(const Node& node, std::size_t operand) { return operand == 1 && node.op->name == "embedding"; }

bool is_matrix(const Node& node, std::size_t operand) {
  return operand == 1 && (node.op->name == "matmul" || node.op->name == "einsum");
}

/// By state: whether it is a float32 parameter that is read, only as a matrix or a table.
IdVector<StateId, bool> matrices_of(const Graph& graph) {
  IdVector<StateId, bool> read(graph.states.size(), false);
  IdVector<StateId, bool> read_otherwise(graph.states.size(), false);
  for (const Function& function : graph.functions) {
    const auto note = [&](ValueId value, bool fits) {
      if (const StateId state = function.values[value].state; state.exists()) {
        (fits ? read : read_otherwise)[state] = true;
      }
    };
    for (const Node& node : function.nodes) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        note(node.inputs[i], is_table(node, i) || is_matrix(node, i));
      }
    }
    std::ranges::for_each(function.outputs, [&](const Port& port) { note(port.value, false); });
    std::ranges::for_each(function.writes, [&](const StateWrite& write) { note(write.value, false); });
  }
  for (const StateId id : graph.states.ids()) {
    const State& state = graph.states[id];
    read[id] = read[id] && !read_otherwise[id] && state.kind == StateKind::parameter && state.type.dtype == DType::f32;
  }
  return read;
}

/// Copies a function whose states already have their new types.
class Storing {
 public:
  Storing(const Graph& graph, const Function& function) : graph_(graph), function_(function), copy_(function) {}

  Function run() {
    for (const Node& node : function_.nodes) {
      add_given_before(node.outputs.front());
      add(node);
    }
    add_given_before(function_.values.next());
    return copy_.finish();
  }

 private:
  void add_given_before(ValueId end) {
    const ValueId first = copy_.made().values.next();
    copy_.add_given_before(end);
    for (const ValueId id : IdRange(first, copy_.made().values.next())) {
      Value& value = copy_.made().values[id];
      if (value.state.exists()) {
        value.type = graph_.states[value.state].type;
      }
    }
  }

  void add(Node node) {
    const ValueId original = node.outputs.front();
    for (ValueId& id : node.inputs) {
      id = copy_.values()[id];
    }
    const bool has_rows = is_table(node, 1) && copy_.type(node.inputs[1]).dtype != DType::f32;
    const DType dtype = has_rows ? copy_.type(node.inputs[1]).dtype : DType::f32;
    const std::int32_t layer = node.layer;
    copy_.append(std::move(node), copy_.values());
    if (has_rows) {
      copy_.made().values[copy_.values()[original]].type.dtype = dtype;
      copy_.values()[original] = as_float(copy_.values()[original], layer);
    }
  }

  /// A cast of the value. Takes over its cut point.
  ValueId as_float(ValueId id, std::int32_t layer) {
    Function& made = copy_.made();
    Node node{.op = &find_op("cast"),
              .name = "cast/" + made.values[id].name,
              .attributes = {{"dtype", to_string(DType::f32)}},
              .inputs = {id},
              .outputs = {made.values.next()},
              .layer = layer};
    node.rule = node.op->rule(node.attributes, {made.values[id].type});
    std::vector<TensorType> results = infer_types(node.rule, {made.values[id].type}, node.name);
    const ValueId result = made.values.push_back({.name = node.name,
                                                  .cut_point = std::exchange(made.values[id].cut_point, {}),
                                                  .type = std::move(results.front()),
                                                  .producer = made.nodes.next()});
    made.nodes.push_back(std::move(node));
    return result;
  }

  const Graph& graph_;
  const Function& function_;
  FunctionCopy copy_;
};

}  // namespace

void store_weights(Graph& graph, DType dtype) {
  if (dtype == DType::f32) {
    return;
  }
  const IdVector<StateId, bool> matrices = matrices_of(graph);
  for (const StateId id : graph.states.ids()) {
    if (matrices[id]) {
      graph.states[id].type.dtype = dtype;
    }
  }
  for (Function& function : graph.functions) {
    function = Storing(graph, function).run();
  }
}

}  // namespace shardrun::graph
