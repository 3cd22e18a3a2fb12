#include <fmt/format.h>

#include <map>
#include <set>
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
  StageBuilder(const FunctionCut& cut, const graph::Graph& graph, const StateStages& states, std::int32_t stage)
      : cut_(cut),
        graph_(graph),
        states_(states),
        stage_(stage),
        messages_(cut.messages[index(stage)]),
        values_(cut.calls.size()),
        state_values_(graph.states.size(), graph::no_value),
        written_(graph.states.size(), false) {}

  SplitFunction run() {
    const std::vector<Segment>& segments = cut_.segments[index(stage_)];
    const SplitFunction& first = from(segments.front().call);
    out_.name = first.name;
    out_.role = first.role;
    out_.rows = first.rows;
    reserve(segments);
    for (std::size_t number = 0; number < segments.size(); ++number) {
      action_ = segments[number].action ? static_cast<std::int32_t>(number) : -1;
      for (const NodeId n : segments[number].nodes->all) {
        add(segments[number].call, n);
      }
    }
    action_ = -1;
    finish(segments.front().call);
    return std::move(out_);
  }

 private:
  /// The call's function before it was cut.
  [[nodiscard]] const SplitFunction& from(std::int32_t call) const { return cut_.calls[index(call)]->split; }

  void reserve(const std::vector<Segment>& segments) {
    std::size_t nodes = messages_.size();
    for (const Segment& segment : segments) {
      nodes += segment.nodes->all.size();
    }
    out_.nodes.reserve(nodes);
  }

  void add(std::int32_t call, NodeId n) {
    const SplitNode& old = from(call).nodes[index(n)];
    const std::vector<std::int32_t>& counted = old.operand_stages;
    Node node{.op = old.op, .name = old.name, .attributes = old.attributes, .phase = old.phase, .layer = old.layer};
    node.inputs.reserve(old.inputs.size());
    for (std::size_t i = 0; i < old.inputs.size(); ++i) {
      if (counted.empty() || counted[i] == stage_) {
        node.inputs.push_back(available(call, old.inputs[i]));
      }
    }
    const NodeId alike = alike_nodes_.emplace(std::pair{cut_.calls[index(call)], n}, next_node()).first->second;
    const bool nothing_here = !counted.empty() && node.inputs.empty();
    append(call, nothing_here ? zero_like(old) : std::move(node), old.transition, old.outputs);
    out_.nodes.back().alike = alike;
    for (const ValueId id : old.outputs) {
      for (const std::int32_t reader : cut_.calls[index(call)]->readers[index(id)]) {
        add_send(call, link_of(old, stage_, reader), id);
      }
    }
    for (const ValueId id : old.outputs) {
      for (const StateWrite& write : cut_.calls[index(call)]->writes[index(id)]) {
        if (states_.holds(index(write.state), stage_)) {
          add_write(write, known(call, id));
        }
      }
    }
  }

  /// A zero, in place of a sum of which this stage has no part.
  static Node zero_like(const Node& sum) {
    return {.op = &graph::find_op("constant"),
            .name = sum.name,
            .attributes = {{"value", 0.0}},
            .phase = sum.phase,
            .layer = sum.layer};
  }

  /// The value in this stage's function that stands for a value of a call; no_value if there is none yet.
  [[nodiscard]] ValueId& known(std::int32_t call, ValueId old) {
    std::vector<std::int32_t>& places = places_[cut_.calls[index(call)]];
    if (places.empty()) {
      places.assign(from(call).values.size(), -1);
    }
    std::int32_t& place = places[index(old)];
    std::vector<ValueId>& values = values_[index(call)];
    if (place < 0) {
      place = places_used_++;
    }
    if (index(place) >= values.size()) {
      values.resize(index(places_used_), graph::no_value);
    }
    return values[index(place)];
  }

  ValueId add_value(std::int32_t call, ValueId old, NodeId producer) {
    const SplitValue& value = from(call).values[index(old)];
    const auto id = static_cast<ValueId>(out_.values.size());
    out_.values.push_back({{.name = value.name, .type = value.type, .producer = producer, .state = value.state},
                           value.placement,
                           alike_values_.emplace(std::pair{cut_.calls[index(call)], old}, id).first->second});
    return id;
  }

  /// A value on this stage: made here, a state, an input, or received now.
  ValueId available(std::int32_t call, ValueId old) {
    const graph::Value& value = from(call).values[index(old)];
    if (value.state >= 0) {
      ValueId& read = state_values_[index(value.state)];
      read = read == graph::no_value ? add_value(call, old, -1) : read;
      return read;
    }
    if (known(call, old) == graph::no_value && value.producer < 0) {
      add_inputs(call);
    }
    while (known(call, old) == graph::no_value) {
      receive_next(value.name);
    }
    return known(call, old);
  }

  /// A stage that needs one of a call's inputs gets all of them, because they are fed together.
  void add_inputs(std::int32_t call) {
    for (const graph::Port& port : from(call).inputs) {
      const ValueId id = add_value(call, port.value, -1);
      known(call, port.value) = id;
      out_.inputs.push_back({{port.name, id}, call});
    }
  }

  void receive_next(const std::string& needed) {
    while (next_message_ < messages_.size() && messages_[next_message_].sends) {
      ++next_message_;
    }
    if (next_message_ == messages_.size()) {
      throw Error(ErrorCode::internal, fmt::format("{} of {} is not sent to stage {}", needed, out_.name, stage_));
    }
    const StageMessage& message = messages_[next_message_++];
    const graph::Value& value = from(message.call).values[index(message.value)];
    const Node& producer = from(message.call).nodes[index(value.producer)];
    const graph::Op& op = op_of(Transition::Kind::receive);
    append(message.call,
           {.op = &op, .name = value.name + ":" + op.name, .phase = producer.phase, .layer = producer.layer},
           Transition{.kind = Transition::Kind::receive, .axis = cut_.axis, .link = message.link}, {message.value});
  }

  void add_send(std::int32_t call, const Link& link, ValueId old) {
    const Node& producer = from(call).nodes[index(from(call).values[index(old)].producer)];
    const graph::Op& op = op_of(Transition::Kind::send);
    append(call,
           {.op = &op,
            .name = producer.name + ":" + op.name,
            .inputs = {known(call, old)},
            .phase = producer.phase,
            .layer = producer.layer},
           Transition{.kind = Transition::Kind::send, .axis = cut_.axis, .link = link}, {});
  }

  [[nodiscard]] NodeId next_node() const { return static_cast<NodeId>(out_.nodes.size()); }

  void append(std::int32_t call, Node node, const std::optional<Transition>& transition,
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

  /// Gathers with the same number in one call get the same number here.
  std::int32_t gather_number(std::int32_t call, std::int32_t old) {
    return gathers_.emplace(std::pair{call, old}, static_cast<std::int32_t>(gathers_.size())).first->second;
  }

  void add_write(StateWrite write, ValueId value) {
    write.value = value;
    if (cut_.repeated && write.mode != StateWrite::Mode::assign) {
      write.mode = written_[index(write.state)] ? StateWrite::Mode::add : StateWrite::Mode::first;
    }
    written_[index(write.state)] = true;
    out_.writes.push_back(write);
  }

  /// At the end: receives what states and outputs need from other stages, and contributes zero to metrics that other
  /// stages accumulate.
  void finish(std::int32_t call) {
    for (const StateWrite& write : from(call).writes) {
      const bool here = states_.holds(index(write.state), stage_);
      const bool assigned = write.mode == StateWrite::Mode::assign;
      const bool written = written_[index(write.state)];
      if (here && assigned && !written) {
        add_write(write, available(call, write.value));
      } else if (graph_.states[index(write.state)].kind == graph::StateKind::metric && !written) {
        append(call, zero_like({.name = graph_.states[index(write.state)].name + "/of_stage"}), std::nullopt,
               {write.value});
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

  using OfFunction = std::pair<const CutFunction*, std::int32_t>;

  const FunctionCut& cut_;
  const graph::Graph& graph_;
  const StateStages& states_;
  const std::int32_t stage_;
  const std::vector<StageMessage>& messages_;
  std::size_t next_message_ = 0;
  std::int32_t action_ = -1;  ///< index of the current action; −1: the segment is not an action
  SplitFunction out_;
  /// Per function and value: its index in an entry of `values_`; −1: none yet.
  std::map<const CutFunction*, std::vector<std::int32_t>> places_;
  std::int32_t places_used_ = 0;
  std::vector<std::vector<ValueId>> values_;  ///< by call, then by place
  std::vector<ValueId> state_values_;         ///< per state
  std::map<OfFunction, ValueId> alike_values_;
  std::map<OfFunction, NodeId> alike_nodes_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> gathers_;
  std::vector<bool> written_;  ///< per state
};

}  // namespace

SplitFunction build_stage(const FunctionCut& cut, const graph::Graph& graph, const StateStages& states,
                          std::int32_t stage) {
  return StageBuilder(cut, graph, states, stage).run();
}

}  // namespace shardrun::partition
