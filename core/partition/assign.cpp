#include "core/partition/assign.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

using graph::ValueId;

class ByStates {
 public:
  ByStates(SplitFunction function, const Pipeline& pipeline, const StateStages& states)
      : made_(std::move(function)), pipeline_(pipeline), states_(states) {}

  SplitFunction run() {
    for (SplitNode& node : std::exchange(made_.nodes, {})) {
      add(std::move(node));
    }
    return std::move(made_);
  }

 private:
  [[nodiscard]] StageId stage_of(ValueId id) const {
    const graph::StateId state = made_.values[id].state;
    return state.exists() ? states_.owner[state] : made_.stage_of(id);
  }

  void add(SplitNode node) {
    std::set<StageId> stages;
    for (const ValueId id : node.inputs) {
      stages.insert(stage_of(id));
    }
    const bool everywhere = stages.erase(StageId{}) > 0;
    if (stages.size() < 2) {
      node.stage = stages.empty() ? StageId{} : *stages.begin();
      append(std::move(node));
    } else if (node.op->variadic_sum) {
      add_sum(std::move(node), everywhere);
    } else {
      throw Error(ErrorCode::job, fmt::format("function {}: {} (op {}) needs tensors of several stages of the pipeline",
                                              made_.name, node.name, node.op->name));
    }
  }

  void add_sum(SplitNode node, bool everywhere) {
    for (const ValueId id : node.inputs) {
      node.operand_stages.push_back(everywhere && !stage_of(id).exists() ? StageId(0) : stage_of(id));
    }
    const ValueId whole = node.outputs[0];
    SplitValue of_stage = made_.values[whole];
    of_stage.name += "/of_stage";
    of_stage.placement.partial.push_back({pipeline_.axis, Reduction::sum});
    const ValueId part = made_.values.push_back(std::move(of_stage));
    const Transition reduce{.kind = Transition::Kind::all_reduce, .axis = pipeline_.axis};
    const graph::Op& op = op_of(reduce.kind);
    const graph::Node reduced{.op = &op,
                              .name = node.name + ":" + op.name,
                              .inputs = {part},
                              .outputs = {whole},
                              .phase = node.phase,
                              .layer = node.layer};
    node.outputs = {part};
    node.transition.reset();
    append(std::move(node));
    append({reduced, reduce});
  }

  void append(SplitNode node) {
    for (const ValueId id : node.outputs) {
      made_.values[id].producer = made_.nodes.next();
    }
    made_.nodes.push_back(std::move(node));
  }

  SplitFunction made_;
  const Pipeline& pipeline_;
  const StateStages& states_;
};

}  // namespace

SplitFunction assign_by_layers(SplitFunction function, const Pipeline& pipeline) {
  for (SplitNode& node : function.nodes) {
    node.stage = pipeline.stage_of(node.layer);
  }
  return function;
}

SplitFunction assign_by_states(SplitFunction function, const Pipeline& pipeline, const StateStages& states) {
  return ByStates(std::move(function), pipeline, states).run();
}

}  // namespace shardrun::partition
