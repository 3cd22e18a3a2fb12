#include <fmt/format.h>

#include <array>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/partition/function_cut.h"

namespace shardrun::partition {
namespace {

using graph::Node;
using graph::NodeId;
using graph::StateId;
using graph::StateWrite;
using graph::ValueId;

/// Builds one stage's part of one function, or of all calls in a step.
class StageBuilder {
 public:
  StageBuilder(const FunctionCut& cut, const graph::Graph& graph, const StateStages& states, StageId stage,
               const std::vector<StageMessage>& messages)
      : cut_(cut),
        graph_(graph),
        states_(states),
        stage_(stage),
        messages_(messages),
        values_(cut.calls.size()),
        state_values_(graph.states.size()),
        written_(graph.states.size(), false) {}

  SplitFunction run() {
    const std::vector<Segment>& segments = cut_.segments[stage_];
    const SplitFunction& first = from(segments.front().call);
    out_.name = first.name;
    out_.role = first.role;
    out_.rows = first.rows;
    reserve(segments);
    for (std::size_t number = 0; number < segments.size(); ++number) {
      action_ = segments[number].action ? ActionId(number) : ActionId{};
      for (const NodeId n : segments[number].nodes->all) {
        add(segments[number].call, n);
      }
    }
    action_ = {};
    out_.end = next_node();
    finish(segments.front().call);
    return std::move(out_);
  }

 private:
  /// A call's function before it is cut into stages.
  [[nodiscard]] const SplitFunction& from(std::size_t call) const { return cut_.calls[call]->split; }

  void reserve(const std::vector<Segment>& segments) {
    std::size_t nodes = messages_.size();
    for (const Segment& segment : segments) {
      nodes += segment.nodes->all.size();
    }
    out_.nodes.reserve(nodes);
  }

  void add(std::size_t call, NodeId n) {
    const SplitNode& old = from(call).nodes[n];
    const std::vector<StageId>& counted = old.operand_stages;
    Node node{.op = old.op, .name = old.name, .attributes = old.attributes, .phase = old.phase, .layer = old.layer};
    node.inputs.reserve(old.inputs.size());
    for (std::size_t i = 0; i < old.inputs.size(); ++i) {
      if (counted.empty() || counted[i] == stage_) {
        node.inputs.push_back(available(call, old.inputs[i]));
      }
    }
    const NodeId alike = alike_nodes_.emplace(std::pair{cut_.calls[call], n}, next_node()).first->second;
    const bool nothing_here = !counted.empty() && node.inputs.empty();
    append(call, nothing_here ? zero_like(old) : std::move(node), old.transition, old.outputs);
    out_.nodes.back().alike = alike;
    if (is_meeting(old, cut_.axis)) {
      out_.nodes.back().transition->place = next_of(StageMessage::Kind::meet, old.name).place;
    }
    for (const ValueId id : old.outputs) {
      for (const StageId reader : cut_.calls[call]->readers[id]) {
        add_send(call, link_of(old, stage_, reader), id);
      }
    }
    for (const ValueId id : old.outputs) {
      for (const StateWrite& write : cut_.calls[call]->writes[id]) {
        if (states_.holds(write.state, stage_)) {
          add_write(write, known(call, id));
        }
      }
    }
  }

  /// A node that makes zero, for a sum to which this stage contributes nothing.
  static Node zero_like(const Node& sum) {
    return {.op = &graph::find_op("constant"),
            .name = sum.name,
            .attributes = {{"value", 0.0}},
            .phase = sum.phase,
            .layer = sum.layer};
  }

  /// The value in this stage's function that stands for a value of a call; none if it was not added yet.
  [[nodiscard]] ValueId& known(std::size_t call, ValueId old) {
    IdVector<ValueId, PlaceId>& places = places_[cut_.calls[call]];
    if (places.empty()) {
      places.assign(from(call).values.size(), {});
    }
    PlaceId& place = places[old];
    IdVector<PlaceId, ValueId>& values = values_[call];
    if (!place.exists()) {
      place = PlaceId(places_used_++);
    }
    if (!values.contains(place)) {
      values.resize(places_used_);
    }
    return values[place];
  }

  ValueId add_value(std::size_t call, ValueId old, NodeId producer) {
    const SplitValue& value = from(call).values[old];
    const ValueId id = out_.values.next();
    return out_.values.push_back({{.name = value.name, .type = value.type, .producer = producer, .state = value.state},
                                  value.placement,
                                  alike_values_.emplace(std::pair{cut_.calls[call], old}, id).first->second});
  }

  /// Adds a value to this stage's function if it is not there yet: a state or an input is added, another stage's value
  /// is received.
  ValueId available(std::size_t call, ValueId old) {
    const graph::Value& value = from(call).values[old];
    if (value.state.exists()) {
      ValueId& read = state_values_[value.state];
      read = read.exists() ? read : add_value(call, old, {});
      return read;
    }
    if (!known(call, old).exists() && !value.producer.exists()) {
      add_inputs(call);
    }
    while (!known(call, old).exists()) {
      receive_next(value.name);
    }
    return known(call, old);
  }

  /// Adds all inputs of a call, even if the stage needs only one: a caller provides all of them.
  void add_inputs(std::size_t call) {
    for (const graph::Port& port : from(call).inputs) {
      const ValueId id = add_value(call, port.value, {});
      known(call, port.value) = id;
      out_.inputs.push_back({{port.name, id}, call});
    }
  }

  void receive_next(const std::string& needed) {
    const StageMessage& message = next_of(StageMessage::Kind::receive, needed);
    const graph::Value& value = from(message.call).values[message.value];
    const Node& producer = from(message.call).nodes[value.producer];
    const graph::Op& op = op_of(Transition::Kind::receive);
    append(
        message.call, {.op = &op, .name = value.name + ":" + op.name, .phase = producer.phase, .layer = producer.layer},
        Transition{.kind = Transition::Kind::receive, .axis = cut_.axis, .link = message.link, .place = message.place},
        {message.value});
  }

  /// The next message of this kind in the stage's list. `what`: names it in an error.
  const StageMessage& next_of(StageMessage::Kind kind, const std::string& what) {
    std::size_t& next = next_messages_[static_cast<std::size_t>(kind)];
    while (next < messages_.size() && messages_[next].kind != kind) {
      ++next;
    }
    if (next == messages_.size()) {
      throw Error(ErrorCode::internal,
                  fmt::format("{} of {} has no message of stage {}", what, out_.name, stage_.number()));
    }
    return messages_[next++];
  }

  void add_send(std::size_t call, const Link& link, ValueId old) {
    const Node& producer = from(call).nodes[from(call).values[old].producer];
    const graph::Op& op = op_of(Transition::Kind::send);
    append(call,
           {.op = &op,
            .name = producer.name + ":" + op.name,
            .inputs = {known(call, old)},
            .phase = producer.phase,
            .layer = producer.layer},
           Transition{.kind = Transition::Kind::send,
                      .axis = cut_.axis,
                      .link = link,
                      .place = next_of(StageMessage::Kind::send, producer.name).place},
           {});
  }

  [[nodiscard]] NodeId next_node() const { return out_.nodes.next(); }

  void append(std::size_t call, Node node, const std::optional<Transition>& transition,
              const std::vector<ValueId>& outputs) {
    node.outputs.reserve(outputs.size());
    for (const ValueId old : outputs) {
      const ValueId id = add_value(call, old, next_node());
      known(call, old) = id;
      node.outputs.push_back(id);
    }
    SplitNode added{std::move(node), transition, stage_};
    added.call = call;
    added.action = action_;
    added.alike = next_node();
    if (transition && transition->gather >= 0) {
      added.transition->gather = gather_number(call, transition->gather);
    }
    out_.nodes.push_back(std::move(added));
  }

  /// The number of a gather in this stage's function. Gathers of one call that have the same number `old` keep a
  /// common number; those of different calls get different ones.
  std::int32_t gather_number(std::size_t call, std::int32_t old) {
    return gathers_.emplace(std::pair{call, old}, static_cast<std::int32_t>(gathers_.size())).first->second;
  }

  void add_write(StateWrite write, ValueId value) {
    write.value = value;
    if (cut_.repeated && write.mode != StateWrite::Mode::assign) {
      write.mode = written_[write.state] ? StateWrite::Mode::add : StateWrite::Mode::first;
    }
    written_[write.state] = true;
    out_.writes.push_back(write);
  }

  /// Ends a call: receives the values of other stages that states and outputs need, and contributes zero to metrics
  /// that other stages accumulate.
  void finish(std::size_t call) {
    for (const StateWrite& write : from(call).writes) {
      const bool here = states_.holds(write.state, stage_);
      const bool assigned = write.mode == StateWrite::Mode::assign;
      const bool written = written_[write.state];
      if (here && assigned && !written) {
        add_write(write, available(call, write.value));
      } else if (graph_.states[write.state].kind == graph::StateKind::metric && !written) {
        append(call, zero_like({.name = graph_.states[write.state].name + "/of_stage"}), std::nullopt, {write.value});
        add_write(write, known(call, write.value));
      }
    }
    for (const graph::Port& port : from(call).outputs) {
      out_.outputs.push_back({port.name, available(call, port.value)});
    }
    for (const graph::Port& port : from(call).inputs) {
      if (!from(call).outputs.empty()) {
        (void)available(call, port.value);
      }
    }
  }

  /// Identifies a value of a function that this stage uses. Each call of the function has its own value for it.
  using PlaceId = Id<struct PlaceTag>;

  const FunctionCut& cut_;
  const graph::Graph& graph_;
  const StateStages& states_;
  const StageId stage_;
  const std::vector<StageMessage>& messages_;
  std::array<std::size_t, 3> next_messages_{};  ///< per kind of message: the index of the next one
  ActionId action_;                             ///< the current action; none: the segment belongs to no action
  SplitFunction out_;
  std::map<const CutFunction*, IdVector<ValueId, PlaceId>> places_;  ///< per function: the places of its values
  std::size_t places_used_ = 0;
  std::vector<IdVector<PlaceId, ValueId>> values_;  ///< per call: its values, by place
  IdVector<StateId, ValueId> state_values_;
  std::map<std::pair<const CutFunction*, ValueId>, ValueId> alike_values_;
  std::map<std::pair<const CutFunction*, NodeId>, NodeId> alike_nodes_;
  std::map<std::pair<std::size_t, std::int32_t>, std::int32_t> gathers_;
  IdVector<StateId, bool> written_;
};

}  // namespace

SplitFunction build_stage(const FunctionCut& cut, const graph::Graph& graph, const StateStages& states, StageId stage,
                          const std::vector<StageMessage>& messages) {
  return StageBuilder(cut, graph, states, stage, messages).run();
}

}  // namespace shardrun::partition
