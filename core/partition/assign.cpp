#include "core/partition/assign.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

using graph::Node;
using graph::ValueId;

class ByStates {
 public:
  ByStates(const ShardedFunction& function, const Pipeline& pipeline, const StateStages& states)
      : from_(function), pipeline_(pipeline), states_(states) {
    made_.function = function;
    made_.function.function.nodes.clear();
    made_.function.transitions.clear();
  }

  AssignedFunction run() {
    for (std::size_t n = 0; n < from_.function.nodes.size(); ++n) {
      add(from_.function.nodes[n], from_.transitions[n]);
    }
    return std::move(made_);
  }

 private:
  [[nodiscard]] std::int32_t stage_of(ValueId id) const {
    const graph::Value& value = made_.function.function.values[index(id)];
    return value.state >= 0 ? states_.owner[index(value.state)] : made_.stage_of(id);
  }

  void add(Node node, const std::optional<Transition>& transition) {
    std::set<std::int32_t> stages;
    for (const ValueId id : node.inputs) {
      stages.insert(stage_of(id));
    }
    const bool everywhere = stages.erase(-1) > 0;
    if (stages.size() < 2) {
      append(std::move(node), transition, stages.empty() ? -1 : *stages.begin(), {});
      return;
    }
    if (!node.op->variadic_sum) {
      throw Error(ErrorCode::job, fmt::format("function {}: {} (op {}) needs tensors of several stages of the pipeline",
                                              from_.function.name, node.name, node.op->name));
    }
    add_sum(std::move(node), everywhere);
  }

  void add_sum(Node node, bool everywhere) {
    std::vector<std::int32_t> counted;
    for (const ValueId id : node.inputs) {
      counted.push_back(everywhere && stage_of(id) < 0 ? 0 : stage_of(id));
    }
    const ValueId whole = node.outputs[0];
    const auto part = static_cast<ValueId>(made_.function.function.values.size());
    made_.function.function.values.push_back(made_.function.function.values[index(whole)]);
    made_.function.function.values.back().name += "/of_stage";
    made_.function.placements.push_back(made_.function.placements[index(whole)]);
    made_.function.placements.back().partial.push_back({pipeline_.axis, Reduction::sum});
    const Transition reduce{.kind = Transition::Kind::all_reduce, .axis = pipeline_.axis};
    const graph::Op& op = op_of(reduce.kind);
    const Node paid{.op = &op,
                    .name = node.name + ":" + op.name,
                    .inputs = {part},
                    .outputs = {whole},
                    .phase = node.phase,
                    .layer = node.layer};
    node.outputs = {part};
    append(std::move(node), std::nullopt, -1, std::move(counted));
    append(paid, reduce, -1, {});
  }

  void append(Node node, std::optional<Transition> transition, std::int32_t stage, std::vector<std::int32_t> counted) {
    for (const ValueId id : node.outputs) {
      made_.function.function.values[index(id)].producer =
          static_cast<graph::NodeId>(made_.function.function.nodes.size());
    }
    made_.function.function.nodes.push_back(std::move(node));
    made_.function.transitions.push_back(transition);
    made_.node_stages.push_back(stage);
    made_.operand_stages.push_back(std::move(counted));
  }

  const ShardedFunction& from_;
  const Pipeline& pipeline_;
  const StateStages& states_;
  AssignedFunction made_;
};

}  // namespace

std::int32_t AssignedFunction::stage_of(ValueId value) const {
  const graph::NodeId producer = function.function.values[index(value)].producer;
  return producer < 0 ? -1 : node_stages[index(producer)];
}

AssignedFunction assign_by_layers(const ShardedFunction& function, const Pipeline& pipeline) {
  AssignedFunction assigned{.function = function, .node_stages = {}, .operand_stages = {}};
  for (const Node& node : function.function.nodes) {
    assigned.node_stages.push_back(pipeline.stage_of(node.layer));
  }
  assigned.operand_stages.resize(function.function.nodes.size());
  return assigned;
}

AssignedFunction assign_by_states(const ShardedFunction& function, const Pipeline& pipeline,
                                  const StateStages& states) {
  return ByStates(function, pipeline, states).run();
}

}  // namespace shardrun::partition
