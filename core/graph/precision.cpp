#include "core/graph/rewrites.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/graph/function_copy.h"

namespace shardrun::graph {
namespace {

/// Copies a function and gives every value its element type in mixed precision. REQUIRES: the states of `graph` already
/// have their types.
class Retyping {
 public:
  Retyping(const Graph& graph, const Function& function)
      : graph_(graph),
        function_(function),
        updates_(function.role == Role::once),
        copy_(function),
        inputs_(function.values.size()),
        writes_of_(function.values.size()),
        written_(function.writes.size()) {
    for (std::size_t w = 0; w < function.writes.size(); ++w) {
      writes_of_[function.writes[w].value].push_back(w);
    }
  }

  Function run() {
    for (const Node& node : function_.nodes) {
      add_given_before(node.outputs.front());
      add(node);
    }
    add_given_before(function_.values.next());
    std::vector<ValueId> outputs;
    for (const Port& port : function_.outputs) {
      outputs.push_back(as(DType::f32, copy_.values()[port.value], graph_.layers));
    }
    for (std::size_t w = 0; w < written_.size(); ++w) {
      if (!written_[w].exists()) {  // a state or an input, which no node makes
        written_[w] = as(type_of_write(w), copy_.values()[function_.writes[w].value], graph_.layers);
      }
    }
    Function made = copy_.finish();
    for (std::size_t p = 0; p < outputs.size(); ++p) {
      made.outputs[p].value = outputs[p];
    }
    made.writes = writes();
    return made;
  }

 private:
  void add_given_before(ValueId end) {
    const ValueId first = copy_.made().values.next();
    copy_.add_given_before(end);
    for (const ValueId id : IdRange(first, copy_.made().values.next())) {
      Value& value = copy_.made().values[id];
      if (value.state.exists()) {
        value.state = updates_ ? graph_.master_of(value.state) : value.state;
        value.name = graph_.states[value.state].name;
        value.type.dtype = graph_.states[value.state].type.dtype;
      }
    }
  }

  void add(Node node) {
    std::vector<TensorType> types;
    bool decided = updates_;  // an update computes in float32, the type of its states
    bool casts = false;       // whether results are cast back to bf16, because the op computes in float32
    for (ValueId& id : node.inputs) {
      const ValueId original = std::exchange(id, copy_.values()[id]);
      if (!decided && is_real(copy_.type(id).dtype)) {
        decided = true;
        casts = node.op->only_float32 && (is_input(original) || copy_.type(id).dtype != DType::f32);
        id = is_input(original) && !node.op->only_float32 ? as_bf16(original) : id;
      }
      if (node.op->only_float32 && is_real(copy_.type(id).dtype)) {
        id = as(DType::f32, id, node.layer, node.phase, node.name);
      }
      types.push_back(copy_.type(id));
    }
    const std::vector<ValueId> originals = node.outputs;
    ShardingRule rule = node.op->rule(node.attributes, types);
    const std::vector<TensorType> results = infer_types(rule, types, node.name);
    const bool sums = node.op->accumulates && !updates_;  // whether result 0 takes the type of the state it is added to
    const Phase phase = node.phase;
    const std::int32_t layer = node.layer;
    copy_.append(std::move(node), copy_.values());
    for (std::size_t o = 0; o < originals.size(); ++o) {
      const ValueId made = copy_.values()[originals[o]];
      const std::vector<std::size_t>& writes = writes_of_[originals[o]];
      const bool follows = o >= rule.dtypes.size() || !rule.dtypes[o];
      copy_.made().values[made].type.dtype =
          sums && o == 0 && !writes.empty() ? type_of_write(writes.front()) : results[o].dtype;
      if (casts && follows) {
        copy_.values()[originals[o]] = as(DType::bf16, made, layer, phase);
      }
      for (const std::size_t w : writes) {
        const ValueId source = type_of_write(w) == DType::bf16 ? copy_.values()[originals[o]] : made;
        written_[w] = as(type_of_write(w), source, layer, phase);
      }
    }
  }

  [[nodiscard]] DType type_of_write(std::size_t w) const { return graph_.states[function_.writes[w].state].type.dtype; }

  std::vector<StateWrite> writes() {
    std::vector<StateWrite> made;
    for (std::size_t w = 0; w < written_.size(); ++w) {
      const StateWrite& write = function_.writes[w];
      const StateId master = graph_.master_of(write.state);
      if (master != write.state) {
        made.push_back({.state = master, .value = copy_.values()[write.value], .mode = write.mode});
      }
      made.push_back({.state = write.state, .value = written_[w], .mode = write.mode});
    }
    return made;
  }

  [[nodiscard]] bool is_input(ValueId original) const {
    return !function_.values[original].producer.exists() && !function_.values[original].state.exists();
  }

  ValueId as_bf16(ValueId input) {
    if (!inputs_[input].exists()) {
      inputs_[input] = as(DType::bf16, copy_.values()[input], -1);
    }
    return inputs_[input];
  }

  /// Returns the value in an element type: the value itself, or a cast that is added here. `reader`: the name of the
  /// node that reads the cast. It makes the cast's name unique if each reader has a cast of its own.
  ValueId as(DType dtype, ValueId id, std::int32_t layer, Phase phase = Phase::forward,
             const std::string& reader = {}) {
    Function& made = copy_.made();
    if (made.values[id].type.dtype == dtype) {
      return id;
    }
    Node node{.op = &find_op("cast"),
              .name = fmt::format("cast/{}{}{}", reader, reader.empty() ? "" : "/", made.values[id].name),
              .attributes = {{"dtype", to_string(dtype)}},
              .inputs = {id},
              .outputs = {made.values.next()},
              .phase = phase,
              .layer = layer};
    node.rule = node.op->rule(node.attributes, {made.values[id].type});
    std::vector<TensorType> results = infer_types(node.rule, {made.values[id].type}, node.name);
    const ValueId result =
        made.values.push_back({.name = node.name, .type = std::move(results.front()), .producer = made.nodes.next()});
    made.nodes.push_back(std::move(node));
    return result;
  }

  const Graph& graph_;
  const Function& function_;
  const bool updates_;
  FunctionCopy copy_;
  IdVector<ValueId, ValueId> inputs_;                      ///< by input: its cast
  IdVector<ValueId, std::vector<std::size_t>> writes_of_;  ///< by value: the indices of its writes
  std::vector<ValueId> written_;                           ///< by write: the value in the state's type
};

void add_master(Graph& graph, StateId id) {
  State master = graph.states[id];
  master.name = fmt::format("master/{}", master.name);
  master.kind = StateKind::optimizer;
  master.initializer.stream = graph.states[id].name;
  master.of_parameter = id;
  graph.states[id].type.dtype = DType::bf16;
  graph.states[id].master = graph.add_state(std::move(master));
}

}  // namespace

void mix_precision(Graph& graph, DType gradients) {
  for (const StateId id : IdRange(StateId(0), graph.states.next())) {  // a copy of the range: the loop adds states
    if (graph.states[id].kind == StateKind::parameter) {
      add_master(graph, id);
    } else if (graph.states[id].kind == StateKind::gradient) {
      graph.states[id].type.dtype = gradients;
    }
  }
  for (Function& function : graph.functions) {
    function = Retyping(graph, function).run();
  }
}

}  // namespace shardrun::graph
