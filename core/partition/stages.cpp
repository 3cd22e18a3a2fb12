#include "core/partition/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/partition/assign.h"
#include "core/partition/deadlock.h"

namespace shardrun::partition {
namespace {

using graph::Node;
using graph::NodeId;
using graph::StateId;
using graph::StateKind;
using graph::StateWrite;
using graph::ValueId;
using plugins::Action;

std::size_t index(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

bool is_update(const ShardedFunction& function) {
  return std::any_of(function.function.nodes.begin(), function.function.nodes.end(),
                     [](const Node& node) { return node.phase == graph::Phase::update; });
}

/// A state is where it is used; what belongs to a parameter is where the parameter is updated, but for gradients,
/// which are gathered up where they are made. Metrics are everywhere.
StateStages find_states(const graph::Graph& graph, const ShardedGraph& sharded, const Pipeline& pipeline) {
  const auto stages = static_cast<std::size_t>(pipeline.stages());
  StateStages states{.held = std::vector(graph.states.size(), std::vector<bool>(stages, false)),
                     .owner = std::vector<std::int32_t>(graph.states.size(), 0)};
  std::vector<std::int32_t> first_layer(graph.states.size(), graph.layers);
  const auto use = [&](StateId state, std::int32_t layer) {
    states.held[index(state)][index(pipeline.stage_of(layer))] = true;
    first_layer[index(state)] = std::min(first_layer[index(state)], layer);
  };
  for (const ShardedFunction& function : sharded.functions) {
    if (is_update(function)) {
      continue;
    }
    for (const Node& node : function.function.nodes) {
      for (const ValueId id : node.inputs) {
        if (const StateId state = function.function.values[index(id)].state; state >= 0) {
          use(state, node.layer);
        }
      }
    }
    for (const StateWrite& write : function.function.writes) {
      if (const NodeId producer = function.function.values[index(write.value)].producer; producer >= 0) {
        use(write.state, function.function.nodes[index(producer)].layer);
      }
    }
  }
  for (std::size_t s = 0; s < graph.states.size(); ++s) {
    const graph::State& state = graph.states[s];
    const std::size_t of = state.of_parameter < 0 ? s : index(state.of_parameter);
    const std::int32_t owner = pipeline.stage_of(first_layer[of]);
    states.owner[s] = owner;
    if (state.kind == StateKind::optimizer) {
      states.held[s].assign(stages, false);
    } else if (state.kind == StateKind::metric) {
      states.held[s].assign(stages, true);
    }
    if (state.kind == StateKind::beside_parameter) {
      states.held[s] = states.held[of];
    }
    states.held[s][index(owner)] = true;
  }
  return states;
}

/// A value of one call that goes along a link.
struct Message {
  std::int32_t call = 0;
  ValueId value = graph::no_value;
};

/// In the order in which they are sent.
using Messages = std::map<Link, std::vector<Message>>;

/// Nodes that one stage does one after the other.
struct Segment {
  std::int32_t call = 0;
  const AssignedFunction* function = nullptr;
  std::vector<NodeId> nodes;
  std::string action;        ///< for messages
  std::int32_t number = -1;  ///< of the action in the stage's list
};

/// Who needs what of a function.
struct Uses {
  std::vector<std::set<std::int32_t>> readers;  ///< of each value the stages that need it and do not make it
  std::map<ValueId, std::vector<StateWrite>> writes;
};

Uses uses_of(const AssignedFunction& assigned, const StateStages& states, std::int32_t stages) {
  const graph::Function& function = assigned.function.function;
  Uses uses;
  for (const StateWrite& write : function.writes) {
    uses.writes[write.value].push_back(write);
  }
  std::vector<std::set<std::int32_t>>& readers = uses.readers;
  readers.resize(function.values.size());
  const auto read_on = [&](ValueId id, std::int32_t stage) {
    const std::int32_t made = assigned.stage_of(id);
    for (std::int32_t s = 0; s < stages && made >= 0; ++s) {
      if (s != made && (stage < 0 || s == stage)) {
        readers[index(id)].insert(s);
      }
    }
  };
  for (std::size_t n = 0; n < function.nodes.size(); ++n) {
    for (const ValueId id : function.nodes[n].inputs) {
      if (assigned.operand_stages[n].empty()) {
        read_on(id, assigned.node_stages[n]);
      }
    }
  }
  for (const StateWrite& write : function.writes) {
    for (std::int32_t stage = 0; stage < stages && write.mode == StateWrite::Mode::assign; ++stage) {
      if (states.holds(index(write.state), stage)) {
        read_on(write.value, stage);
      }
    }
  }
  for (const graph::Port& port : function.outputs) {
    read_on(port.value, -1);
  }
  return uses;
}

/// Builds what one stage does of one function, or of all calls of a step.
class StageBuilder {
 public:
  using UsesOfFunctions = std::map<const AssignedFunction*, Uses>;

  /// `calls`: the function of each call. REQUIRES: all of them outlive this.
  StageBuilder(const graph::Graph& graph, const Pipeline& pipeline, const StateStages& states,
               const UsesOfFunctions& uses, const std::vector<const AssignedFunction*>& calls, std::int32_t stage)
      : graph_(graph), pipeline_(pipeline), states_(states), uses_(uses), calls_(calls), stage_(stage) {}

  /// What this stage sends, by link.
  void list_messages(const std::vector<Segment>& segments, Messages& messages) const {
    for (const Segment& segment : segments) {
      for (const NodeId n : segment.nodes) {
        for_each_message(segment, n, [&](const Link& link, ValueId id) {
          messages[link].push_back({segment.call, id});
        });
      }
    }
  }

  StageFunction build(const std::vector<Segment>& segments, const Messages& messages, bool repeated) {
    for (const auto& [link, list] : messages) {
      if (link.to == stage_) {
        arriving_[link].assign(list.begin(), list.end());
      }
    }
    repeated_ = repeated;
    const graph::Function& first = segments.front().function->function.function;
    out_.function.function.name = first.name;
    out_.function.function.rows = first.rows;
    for (const Segment& segment : segments) {
      action_ = segment.action;
      action_number_ = segment.number;
      for (const NodeId n : segment.nodes) {
        add(segment, n);
      }
    }
    action_number_ = -1;
    finish(segments.front());
    return std::move(out_);
  }

 private:
  template <typename Visit>
  void for_each_message(const Segment& segment, NodeId n, const Visit& visit) const {
    const AssignedFunction& assigned = *segment.function;
    const Node& node = assigned.function.function.nodes[index(n)];
    const bool backward = node.phase == graph::Phase::backward_input || node.phase == graph::Phase::backward_weight;
    for (const ValueId id : node.outputs) {
      for (const std::int32_t reader : uses_.at(&assigned).readers[index(id)]) {
        visit(Link{stage_, reader, backward}, id);
      }
    }
  }

  [[nodiscard]] graph::Function& function() { return out_.function.function; }

  void add(const Segment& segment, NodeId n) {
    const AssignedFunction& assigned = *segment.function;
    Node node = assigned.function.function.nodes[index(n)];
    const std::vector<std::int32_t>& counted = assigned.operand_stages[index(n)];
    std::vector<ValueId> inputs;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (counted.empty() || counted[i] == stage_) {
        inputs.push_back(available(segment, node.inputs[i]));
      }
    }
    const std::vector<ValueId> outputs = node.outputs;
    if (!counted.empty() && inputs.empty()) {
      node = zero_like(node);
    }
    node.inputs = std::move(inputs);
    append(segment, std::move(node), assigned.function.transitions[index(n)], outputs);
    for_each_message(segment, n, [&](const Link& link, ValueId id) { add_send(segment, link, id); });
    for (const ValueId old : outputs) {
      const auto writes = uses_.at(&assigned).writes.find(old);
      for (std::size_t w = 0; writes != uses_.at(&assigned).writes.end() && w < writes->second.size(); ++w) {
        if (states_.holds(index(writes->second[w].state), stage_)) {
          add_write(writes->second[w], known(segment, old));
        }
      }
    }
  }

  /// What stands for a sum of which this stage has no part.
  static Node zero_like(const Node& sum) {
    return {.op = &graph::find_op("constant"),
            .name = sum.name,
            .attributes = {{"value", 0.0}},
            .outputs = sum.outputs,
            .phase = sum.phase,
            .layer = sum.layer};
  }

  [[nodiscard]] ValueId known(const Segment& segment, ValueId old) {
    return values_.at({segment.call, segment.function, old});
  }

  ValueId add_value(const Segment& segment, ValueId old, NodeId producer) {
    graph::Value value = segment.function->function.function.values[index(old)];
    value.producer = producer;
    function().values.push_back(std::move(value));
    out_.function.placements.push_back(segment.function->function.placements[index(old)]);
    return static_cast<ValueId>(function().values.size()) - 1;
  }

  /// A value where this stage has it: made here, a state, an input, or received now.
  ValueId available(const Segment& segment, ValueId old) {
    const graph::Value& value = segment.function->function.function.values[index(old)];
    if (value.state >= 0) {
      const auto [entry, is_new] = state_values_.emplace(value.state, graph::no_value);
      if (is_new) {
        entry->second = add_value(segment, old, -1);
      }
      return entry->second;
    }
    const auto [entry, is_new] = values_.emplace(Key{segment.call, segment.function, old}, graph::no_value);
    if (!is_new) {
      return entry->second;
    }
    if (value.producer < 0) {
      return add_input(segment, old);
    }
    values_.erase(entry);
    receive_until(segment, old);
    return known(segment, old);
  }

  /// A stage that needs one of a call's inputs has all of them: they are fed together.
  ValueId add_input(const Segment& segment, ValueId old) {
    for (const graph::Port& port : segment.function->function.function.inputs) {
      const ValueId id = add_value(segment, port.value, -1);
      values_[{segment.call, segment.function, port.value}] = id;
      function().inputs.push_back({port.name, id});
      out_.function.input_calls.push_back(segment.call);
    }
    return known(segment, old);
  }

  /// What was sent before it along its link comes first.
  void receive_until(const Segment& segment, ValueId old) {
    const graph::Function& from = segment.function->function.function;
    const Node& producer = from.nodes[index(from.values[index(old)].producer)];
    const bool backward =
        producer.phase == graph::Phase::backward_input || producer.phase == graph::Phase::backward_weight;
    const Link link{segment.function->stage_of(old), stage_, backward};
    std::deque<Message>& arriving = arriving_[link];
    while (!arriving.empty()) {
      const Message message = arriving.front();
      arriving.pop_front();
      receive(link, message);
      if (message.call == segment.call && message.value == old) {
        return;
      }
    }
    throw Error(ErrorCode::internal, fmt::format("{}: stage {} of {} does not send it to stage {}",
                                                 from.values[index(old)].name, link.from, from.name, stage_));
  }

  void receive(const Link& link, const Message& message) {
    const Segment source{message.call, calls_[index(message.call)], {}, {}};
    const graph::Value& value = source.function->function.function.values[index(message.value)];
    const Node& producer = source.function->function.function.nodes[index(value.producer)];
    const graph::Op& op = op_of(Transition::Kind::receive);
    append(source, {.op = &op, .name = value.name + ":" + op.name, .phase = producer.phase, .layer = producer.layer},
           Transition{.kind = Transition::Kind::receive, .axis = pipeline_.axis, .link = link}, {message.value});
  }

  void add_send(const Segment& segment, const Link& link, ValueId old) {
    const Node& producer = segment.function->function.function
                               .nodes[index(segment.function->function.function.values[index(old)].producer)];
    const graph::Op& op = op_of(Transition::Kind::send);
    append(segment,
           {.op = &op,
            .name = producer.name + ":" + op.name,
            .inputs = {known(segment, old)},
            .phase = producer.phase,
            .layer = producer.layer},
           Transition{.kind = Transition::Kind::send, .axis = pipeline_.axis, .link = link}, {});
  }

  void append(const Segment& segment, Node node, const std::optional<Transition>& transition,
              const std::vector<ValueId>& outputs) {
    node.outputs.clear();
    for (const ValueId old : outputs) {
      const ValueId id = add_value(segment, old, static_cast<NodeId>(function().nodes.size()));
      values_[{segment.call, segment.function, old}] = id;
      node.outputs.push_back(id);
    }
    out_.function.transitions.push_back(transition);
    if (out_.function.transitions.back() && out_.function.transitions.back()->gather >= 0) {
      out_.function.transitions.back()->gather = gather_number(segment, transition->gather);
    }
    function().nodes.push_back(std::move(node));
    out_.function.node_calls.push_back(segment.call);
    out_.function.node_actions.push_back(action_number_);
    out_.actions.push_back(action_);
  }

  /// What is gathered at once in one call is gathered at once here.
  std::int32_t gather_number(const Segment& segment, std::int32_t old) {
    return gathers_.emplace(std::pair{segment.call, old}, static_cast<std::int32_t>(gathers_.size())).first->second;
  }

  void add_write(StateWrite write, ValueId value) {
    write.value = value;
    if (repeated_ && write.mode != StateWrite::Mode::assign) {
      write.mode = written_.insert(write.state).second ? StateWrite::Mode::first : StateWrite::Mode::add;
    }
    written_.insert(write.state);
    function().writes.push_back(write);
  }

  /// What comes from other stages for states and outputs; metrics that others gather up.
  void finish(const Segment& first) {
    const graph::Function& from = first.function->function.function;
    for (const StateWrite& write : from.writes) {
      const bool here = states_.holds(index(write.state), stage_);
      const bool assigned = write.mode == StateWrite::Mode::assign;
      if (here && assigned && !written_.contains(write.state)) {
        add_write(write, available(first, write.value));
      } else if (graph_.states[index(write.state)].kind == StateKind::metric && !written_.contains(write.state)) {
        append(first, zero_like({.name = graph_.states[index(write.state)].name + "/of_stage", .outputs = {}}),
               std::nullopt, {write.value});
        add_write(write, known(first, write.value));
      }
    }
    for (const graph::Port& port : from.outputs) {
      function().outputs.push_back({port.name, available(first, port.value)});
    }
    for (const graph::Port& port : from.inputs) {
      if (!from.outputs.empty()) {
        (void)available(first, port.value);
      }
    }
  }

  using Key = std::tuple<std::int32_t, const AssignedFunction*, ValueId>;

  const graph::Graph& graph_;
  const Pipeline& pipeline_;
  const StateStages& states_;
  const UsesOfFunctions& uses_;
  const std::vector<const AssignedFunction*>& calls_;
  const std::int32_t stage_;
  bool repeated_ = false;
  std::string action_;
  std::int32_t action_number_ = -1;
  StageFunction out_;
  std::map<Key, ValueId> values_;
  std::map<StateId, ValueId> state_values_;
  std::map<Link, std::deque<Message>> arriving_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> gathers_;
  std::set<StateId> written_;
};

bool belongs_to(const Node& node, const Action& action, const Pipeline& pipeline) {
  if (pipeline.chunk_of(node.layer) != action.chunk) {
    return false;
  }
  switch (action.kind) {
    case Action::Kind::forward: return node.phase == graph::Phase::forward;
    case Action::Kind::backward: return node.phase != graph::Phase::forward;
    case Action::Kind::backward_input: return node.phase == graph::Phase::backward_input;
    case Action::Kind::backward_weight: return node.phase == graph::Phase::backward_weight;
  }
  return false;
}

class Cutting {
 public:
  Cutting(const graph::Graph& graph, const ShardedGraph& sharded, const Pipeline& pipeline,
          const std::vector<std::int64_t>& microbatch_rows)
      : graph_(graph), sharded_(sharded), pipeline_(pipeline), rows_(microbatch_rows) {}

  Stages run() {
    stages_.states = find_states(graph_, sharded_, pipeline_);
    stages_.functions.resize(static_cast<std::size_t>(pipeline_.stages()));
    bool cut_micro = false;
    for (const ShardedFunction& function : sharded_.functions) {
      if (function.function.name != "micro") {
        cut_alone(function);
      } else if (!std::exchange(cut_micro, true)) {
        cut_microbatches();
      }
    }
    return std::move(stages_);
  }

 private:
  using SegmentsOfStages = std::vector<std::vector<Segment>>;

  void cut_alone(const ShardedFunction& function) {
    const AssignedFunction assigned = is_update(function) ? assign_by_states(function, pipeline_, stages_.states)
                                                          : assign_by_layers(function, pipeline_);
    SegmentsOfStages segments;
    for (std::int32_t stage = 0; stage < pipeline_.stages(); ++stage) {
      Segment segment{0, &assigned, {}, function.function.name};
      for (std::size_t n = 0; n < assigned.node_stages.size(); ++n) {
        if (assigned.node_stages[n] < 0 || assigned.node_stages[n] == stage) {
          segment.nodes.push_back(static_cast<NodeId>(n));
        }
      }
      segments.push_back({std::move(segment)});
    }
    build(segments, {&assigned}, false);
  }

  void cut_microbatches() {
    std::map<std::int64_t, AssignedFunction> by_rows;
    std::vector<const AssignedFunction*> calls;
    for (const std::int64_t rows : rows_) {
      if (!by_rows.contains(rows)) {
        by_rows.emplace(rows, assign_by_layers(find("micro", rows), pipeline_));
      }
      calls.push_back(&by_rows.at(rows));
    }
    std::map<std::tuple<const AssignedFunction*, std::uint32_t, Action::Kind>, std::vector<NodeId>> nodes;
    SegmentsOfStages segments;
    for (const std::vector<Action>& actions : pipeline_.actions) {
      std::vector<Segment>& of_stage = segments.emplace_back();
      for (const Action& action : actions) {
        const auto call = static_cast<std::int32_t>(action.microbatch);
        const AssignedFunction* function = calls[action.microbatch];
        const auto [entry, is_new] =
            nodes.emplace(std::tuple{function, action.chunk, action.kind}, std::vector<NodeId>{});
        const graph::Function& from = function->function.function;
        for (std::size_t n = 0; n < from.nodes.size() && is_new; ++n) {
          if (belongs_to(from.nodes[n], action, pipeline_)) {
            entry->second.push_back(static_cast<NodeId>(n));
          }
        }
        of_stage.push_back(
            {call, function, entry->second, to_string(action), static_cast<std::int32_t>(of_stage.size())});
      }
    }
    build(segments, calls, true);
  }

  [[nodiscard]] const ShardedFunction& find(const char* name, std::int64_t rows) const {
    return *std::find_if(sharded_.functions.begin(), sharded_.functions.end(), [&](const ShardedFunction& each) {
      return each.function.name == name && each.function.rows == rows;
    });
  }

  void build(const SegmentsOfStages& segments, const std::vector<const AssignedFunction*>& calls, bool repeated) {
    StageBuilder::UsesOfFunctions uses;
    for (const AssignedFunction* call : calls) {
      if (!uses.contains(call)) {
        uses.emplace(call, uses_of(*call, stages_.states, pipeline_.stages()));
      }
    }
    Messages messages;
    std::vector<StageBuilder> builders;
    for (std::int32_t stage = 0; stage < pipeline_.stages(); ++stage) {
      builders.emplace_back(graph_, pipeline_, stages_.states, uses, calls, stage);
      builders.back().list_messages(segments[index(stage)], messages);
    }
    std::vector<StageFunction> made;
    for (std::int32_t stage = 0; stage < pipeline_.stages(); ++stage) {
      made.push_back(builders[index(stage)].build(segments[index(stage)], messages, repeated));
      if (repeated) {
        made.back().function.function.rows = 0;
        for (const std::int64_t rows : rows_) {
          made.back().function.function.rows += rows;
        }
        made.back().function.call_rows = rows_;
        made.back().function.ties = ties_of(stage);
      }
    }
    const std::size_t under_way = least_under_way(made);
    for (std::size_t stage = 0; stage < made.size(); ++stage) {
      made[stage].function.under_way = under_way;
      stages_.functions[stage].push_back(std::move(made[stage].function));
    }
  }

  [[nodiscard]] std::vector<Tie> ties_of(std::int32_t stage) const {
    std::vector<Tie> ties;
    for (std::size_t s = 0; s < graph_.states.size(); ++s) {
      const std::int32_t owner = stages_.states.owner[s];
      for (std::int32_t from = 0; from < pipeline_.stages() && graph_.states[s].kind == StateKind::gradient; ++from) {
        if (from != owner && stages_.states.holds(s, from) && (stage == owner || stage == from)) {
          ties.push_back({static_cast<StateId>(s), {from, owner, true}});
        }
      }
    }
    return ties;
  }

  const graph::Graph& graph_;
  const ShardedGraph& sharded_;
  const Pipeline& pipeline_;
  const std::vector<std::int64_t>& rows_;
  Stages stages_;
};

}  // namespace

Stages cut_stages(const graph::Graph& graph, const ShardedGraph& sharded, const Pipeline& pipeline,
                  const std::vector<std::int64_t>& microbatch_rows) {
  if (pipeline.exists()) {
    return Cutting(graph, sharded, pipeline, microbatch_rows).run();
  }
  return {.states = {.held = std::vector(graph.states.size(), std::vector<bool>(1, true)),
                     .owner = std::vector<std::int32_t>(graph.states.size(), 0)},
          .functions = {sharded.functions}};
}

}  // namespace shardrun::partition
