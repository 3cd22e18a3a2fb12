#include "core/partition/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/partition/deadlock.h"
#include "core/partition/function_cut.h"
#include "core/partition/launch_order.h"
#include "core/partition/pipeline.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {
namespace {

using graph::Node;
using graph::NodeId;
using graph::StateId;
using graph::StateKind;
using graph::StateWrite;
using graph::ValueId;
using plan::Action;

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

/// The stage of a node is the stage of its layer.
SplitFunction assign_by_layers(SplitFunction function, const Pipeline& pipeline) {
  for (SplitNode& node : function.nodes) {
    node.stage = pipeline.stage_of(node.layer);
  }
  return function;
}

/// For an update: the stage of a node is the stage that updates the states it reads, and every stage if it reads only
/// metrics. A sum over tensors of several stages becomes a sum on each stage, followed by an all_reduce. Throws
/// Error{job} for any other op over tensors of several stages.
SplitFunction assign_by_states(SplitFunction function, const Pipeline& pipeline, const StateStages& states) {
  return ByStates(std::move(function), pipeline, states).run();
}

bool is_update(const SplitFunction& function) {
  return std::any_of(function.nodes.begin(), function.nodes.end(),
                     [](const Node& node) { return node.phase == graph::Phase::update; });
}

/// Finds the stages of each state.
///  - Parameters, gradients, fields and caches are on every stage that uses or contributes to them.
///  - Optimizer states are on the stage that updates their parameter.
///  - Metrics are on every stage, as sums of all stages, and no stage owns them.
StateStages find_states(const graph::Graph& graph, const ShardedGraph& sharded, const Pipeline& pipeline) {
  StateStages states;
  states.held.assign(graph.states.size(), IdVector<StageId, bool>(pipeline.stages(), false));
  states.owner.assign(graph.states.size(), StageId(0));
  IdVector<StateId, std::int32_t> first_layer(graph.states.size(), graph.layers);
  const auto use = [&](StateId state, std::int32_t layer) {
    states.held[state][pipeline.stage_of(layer)] = true;
    first_layer[state] = std::min(first_layer[state], layer);
  };
  for (const SplitFunction& function : sharded.functions) {
    if (is_update(function)) {
      continue;
    }
    for (const SplitNode& node : function.nodes) {
      for (const ValueId id : node.inputs) {
        if (const StateId state = function.values[id].state; state.exists()) {
          use(state, node.layer);
        }
      }
    }
    for (const StateWrite& write : function.writes) {
      if (const NodeId producer = function.values[write.value].producer; producer.exists()) {
        use(write.state, function.nodes[producer].layer);
      }
    }
  }
  for (const StateId s : graph.states.ids()) {
    const graph::State& state = graph.states[s];
    const StateId of = state.of_parameter.exists() ? state.of_parameter : s;
    if (state.kind == StateKind::metric) {
      states.owner[s] = StageId{};
      states.held[s].assign(pipeline.stages(), true);
      continue;
    }
    const StageId owner = pipeline.stage_of(first_layer[of]);
    states.owner[s] = owner;
    if (state.kind == StateKind::optimizer) {
      states.held[s].assign(pipeline.stages(), false);
    }
    if (state.kind == StateKind::hook_state && !state.of_gradient) {
      states.held[s] = states.held[of];
    }
    states.held[s][owner] = true;
  }
  return states;
}

bool belongs_to(graph::Phase phase, Action::Kind kind) {
  switch (kind) {
    case Action::Kind::forward: return phase == graph::Phase::forward;
    case Action::Kind::backward: return phase != graph::Phase::forward;
    case Action::Kind::backward_input: return phase == graph::Phase::backward_input;
    case Action::Kind::backward_weight: return phase == graph::Phase::backward_weight;
  }
  return false;
}

/// Finds the nodes of a chunk that an action of a stage executes.
class NodesOfActions {
 public:
  NodesOfActions(FunctionCut& cut, const Pipeline& pipeline) : cut_(cut), pipeline_(pipeline) {}

  const SegmentNodes* find(const CutFunction& function, const Action& action, StageId stage) {
    const auto [entry, is_new] = known_.emplace(std::tuple{&function, action.chunk, action.kind}, nullptr);
    if (is_new) {
      SegmentNodes& nodes = cut_.nodes.emplace_back();
      for (const NodeId n : of_chunk(function, action.chunk)) {
        if (belongs_to(function.split.nodes[n].phase, action.kind)) {
          nodes.all.push_back(n);
        }
      }
      nodes.meeting = meeting_of(function, nodes.all, stage, pipeline_.axis);
      entry->second = &nodes;
    }
    return entry->second;
  }

 private:
  const std::vector<NodeId>& of_chunk(const CutFunction& function, std::size_t chunk) {
    std::vector<std::vector<NodeId>>& chunks = chunks_[&function];
    if (chunks.empty()) {
      chunks.resize(pipeline_.chunks.size());
      for (const NodeId n : function.split.nodes.ids()) {
        chunks[pipeline_.chunk_of(function.split.nodes[n].layer)].push_back(n);
      }
    }
    return chunks[chunk];
  }

  FunctionCut& cut_;
  const Pipeline& pipeline_;
  std::map<const CutFunction*, std::vector<std::vector<NodeId>>> chunks_;
  std::map<std::tuple<const CutFunction*, std::uint32_t, Action::Kind>, const SegmentNodes*> known_;
};

/// Returns a function that names a message for error texts. `cut` must outlive it.
std::function<MessageName(const StageMessage&)> namer(const FunctionCut& cut) {
  return [&cut](const StageMessage& message) {
    const SplitFunction& function = cut.calls[message.call]->split;
    const graph::Value& value = function.values[message.value];
    if (message.kind == StageMessage::Kind::meet) {
      return MessageName{.action = function.name, .node = function.nodes[value.producer].name};
    }
    const bool sends = message.kind == StageMessage::Kind::send;
    const std::optional<Action>& action =
        cut.segments[sends ? message.link.from : message.link.to][message.segment].action;
    return MessageName{.action = action ? to_string(*action) : function.name,
                       .node = sends ? function.nodes[value.producer].name + ":" + op_of(Transition::Kind::send).name
                                     : value.name + ":" + op_of(Transition::Kind::receive).name};
  };
}

class Cutting {
 public:
  Cutting(const graph::Graph& graph, const ShardedGraph& sharded, const Pipeline& pipeline,
          const std::vector<std::int64_t>& microbatch_rows)
      : graph_(graph), sharded_(sharded), pipeline_(pipeline), rows_(microbatch_rows) {}

  Stages run() {
    stages_.states = find_states(graph_, sharded_, pipeline_);
    bool has_repeated = false;
    for (const SplitFunction& function : sharded_.functions) {
      if (function.role != graph::Role::repeated) {
        cut_alone(function);
      } else if (!std::exchange(has_repeated, true)) {
        cut_microbatches();
      }
    }
    return std::move(stages_);
  }

 private:
  const CutFunction& add(FunctionCut& cut, SplitFunction assigned) const {
    return cut.functions.emplace_back(cut_function(std::move(assigned), stages_.states, pipeline_.stage_ids()));
  }

  void cut_alone(const SplitFunction& function) {
    FunctionCut cut{.axis = pipeline_.axis};
    const CutFunction& own = add(cut, is_update(function) ? assign_by_states(function, pipeline_, stages_.states)
                                                          : assign_by_layers(function, pipeline_));
    cut.calls = {&own};
    for (const StageId stage : pipeline_.stage_ids()) {
      SegmentNodes& nodes = cut.nodes.emplace_back();
      for (const NodeId n : own.split.nodes.ids()) {
        if (!own.split.nodes[n].stage.exists() || own.split.nodes[n].stage == stage) {
          nodes.all.push_back(n);
        }
      }
      nodes.meeting = meeting_of(own, nodes.all, stage, pipeline_.axis);
      cut.segments.push_back({{.call = 0, .nodes = &nodes}});
    }
    finish(std::move(cut));
  }

  void cut_microbatches() {
    FunctionCut cut{.repeated = true, .axis = pipeline_.axis, .call_rows = rows_, .ties = ties()};
    std::map<std::int64_t, const CutFunction*> by_rows;
    for (const std::int64_t rows : rows_) {
      const CutFunction*& function = by_rows[rows];
      function = function == nullptr ? &add(cut, assign_by_layers(find_repeated(rows), pipeline_)) : function;
      cut.calls.push_back(function);
    }
    NodesOfActions nodes(cut, pipeline_);
    for (const StageId stage : pipeline_.stage_ids()) {
      std::vector<Segment> segments;
      for (const Action& action : pipeline_.actions[stage]) {
        segments.push_back({.call = action.microbatch,
                            .nodes = nodes.find(*cut.calls[action.microbatch], action, stage),
                            .action = action});
      }
      cut.segments.push_back(std::move(segments));
    }
    finish(std::move(cut));
  }

  [[nodiscard]] std::vector<Tie> ties() const {
    std::vector<Tie> ties;
    for (const StateId s : graph_.states.ids()) {
      const StageId owner = stages_.states.owner[s];
      for (const StageId from : pipeline_.stage_ids()) {
        if (graph_.states[s].kind == StateKind::gradient && from != owner && stages_.states.holds(s, from)) {
          ties.push_back({s, {from, owner, true}});
        }
      }
    }
    return ties;
  }

  [[nodiscard]] const SplitFunction& find_repeated(std::int64_t rows) const {
    return *std::find_if(sharded_.functions.begin(), sharded_.functions.end(), [&](const SplitFunction& each) {
      return each.role == graph::Role::repeated && each.rows == rows;
    });
  }

  void finish(FunctionCut cut) {
    order_messages(cut, graph_, stages_.states);
    IdVector<StageId, std::vector<StageMessage>> messages = cut.messages;
    for (std::vector<StageMessage>& of_stage : messages) {
      std::erase_if(of_stage, [](const StageMessage& each) { return each.kind == StageMessage::Kind::meet; });
    }
    cut.under_way = least_under_way(messages, namer(cut));
    stages_.cuts.push_back(std::make_shared<const FunctionCut>(std::move(cut)));
  }

  const graph::Graph& graph_;
  const ShardedGraph& sharded_;
  const Pipeline& pipeline_;
  const std::vector<std::int64_t>& rows_;
  Stages stages_;
};

/// All stages' messages in the order in which device queues launch them, and the largest number in flight per link.
std::pair<IdVector<StageId, std::vector<StageMessage>>, std::size_t> launched_messages(const FunctionCut& cut) {
  IdVector<StageId, std::vector<StageMessage>> messages = cut.messages;
  const std::size_t under_way = least_under_way(messages, namer(cut));
  order_launches(messages, under_way);
  return {std::move(messages), under_way};
}

}  // namespace

std::vector<SplitFunction> Stages::functions_of(const graph::Graph& graph, StageId stage, MessageMemory memory) const {
  std::vector<SplitFunction> functions;
  for (const std::shared_ptr<const FunctionCut>& cut : cuts) {
    const auto [messages, under_way] =
        memory == MessageMemory::device ? launched_messages(*cut) : std::pair{cut->messages, cut->under_way};
    SplitFunction& function = functions.emplace_back(build_stage(*cut, graph, states, stage, messages[stage]));
    function.under_way = under_way;
    if (cut->repeated) {
      function.rows = std::accumulate(cut->call_rows.begin(), cut->call_rows.end(), std::int64_t{0});
      function.call_rows = cut->call_rows;
      std::copy_if(cut->ties.begin(), cut->ties.end(), std::back_inserter(function.ties),
                   [&](const Tie& tie) { return tie.link.from == stage || tie.link.to == stage; });
    }
  }
  return functions;
}

bool Stages::have_sums() const {
  return std::ranges::any_of(cuts, [](const std::shared_ptr<const FunctionCut>& cut) {
    return std::ranges::any_of(cut->messages, [](const std::vector<StageMessage>& messages) {
      return std::ranges::find(messages, StageMessage::Kind::meet, &StageMessage::kind) != messages.end();
    });
  });
}

std::vector<Link> Stages::links() const {
  std::set<Link> links;
  for (const std::shared_ptr<const FunctionCut>& cut : cuts) {
    for (const std::vector<StageMessage>& messages : cut->messages) {
      for (const StageMessage& message : messages) {
        if (message.kind != StageMessage::Kind::meet) {
          links.insert(message.link);
        }
      }
    }
    for (const Tie& tie : cut->ties) {
      links.insert(tie.link);
    }
  }
  return {links.begin(), links.end()};
}

Stages cut_stages(const graph::Graph& graph, const ShardedGraph& sharded, const Pipeline& pipeline,
                  const std::vector<std::int64_t>& microbatch_rows) {
  if (pipeline.exists()) {
    return Cutting(graph, sharded, pipeline, microbatch_rows).run();
  }
  Stages stages;
  stages.states.held.assign(graph.states.size(), IdVector<StageId, bool>(1, true));
  stages.states.owner.assign(graph.states.size(), StageId(0));
  return stages;
}

}  // namespace shardrun::partition
