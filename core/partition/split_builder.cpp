#include "core/partition/split_builder.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/partition/transition.h"

namespace shardrun::partition {

using graph::Node;
using graph::Phase;
using graph::ValueId;
using mesh::Placement;

SplitBuilder::SplitBuilder(const graph::Function& function, const Placements& placements)
    : placements_(placements), gathers_again_(function.gathers_again) {
  out_.name = function.name;
  out_.role = function.role;
  out_.rows = function.rows;
  out_.writes.resize(function.writes.size());
}

const graph::TensorType& SplitBuilder::type(ValueId id) const { return out_.values[id].type; }

const Placement& SplitBuilder::placement(ValueId id) const { return out_.values[id].placement; }

void SplitBuilder::begin(const Node& node) {
  phase_ = node.phase;
  layer_ = node.layer;
  const std::pair<bool, std::int32_t> now = {node.phase != Phase::forward, node.layer};
  stretch_ += now == stretch_of_ ? 0 : 1;
  stretch_of_ = now;
}

ValueId SplitBuilder::add_value(graph::Value value, Placement placement) {
  return out_.values.push_back({std::move(value), std::move(placement), out_.values.next()});
}

ValueId SplitBuilder::add_result(const std::string& name, const graph::TensorType& type, Placement placement) {
  return add_value({.name = name, .type = type, .producer = out_.nodes.next()}, std::move(placement));
}

void SplitBuilder::add_node(Node node, std::optional<Transition> transition) {
  SplitNode added{std::move(node), transition};
  if (out_.role == graph::Role::repeated) {
    added.action = ActionId(added.phase == Phase::forward ? 0 : 1);
  }
  added.alike = out_.nodes.next();
  out_.nodes.push_back(std::move(added));
}

ValueId SplitBuilder::reshard(ValueId from, Placement to) {
  to.varying = placement(from).varying;
  const bool again = gathers_again(from, to);
  const auto known = resharded_.find({from, to, again});
  if (known != resharded_.end()) {
    return known->second;
  }
  ValueId at = from;
  while (const std::optional<Transition> step = next_transition(placement(at), to)) {
    at = add_transition(at, *step);
  }
  if (placement(at) != to) {
    throw Error(ErrorCode::internal,
                fmt::format("function {}: {} cannot go from {} to {}", out_.name, out_.values[from].name,
                            to_string(placement(from), placements_.mesh), to_string(to, placements_.mesh)));
  }
  resharded_.emplace(std::tuple{from, to, again}, at);
  return at;
}

bool SplitBuilder::gathers_again(ValueId from, const Placement& to) const {
  const graph::NodeId producer = out_.values[from].producer;
  if (!gathers_again_ || phase_ == Phase::forward || !producer.exists() ||
      out_.nodes[producer].phase != Phase::forward) {
    return false;
  }
  const std::optional<Transition> first = next_transition(placement(from), to);
  return first && first->kind == Transition::Kind::all_gather;
}

ValueId SplitBuilder::gather(ValueId state, const Gather& gather, const Placement& use) {
  Gathered& last = gathered_[state];
  const bool again = placements_.stages ? stretch_ > last.stretch : !gather.keep && stretch_ > last.stretch + 1;
  if (!last.value.exists() || again) {
    const auto number = gathers_.emplace(std::pair{gather.unit, stretch_}, static_cast<std::int32_t>(gathers_.size()));
    last.value = state;
    while (std::optional<Transition> step = next_transition(placement(last.value), use)) {
      step->gather = number.first->second;
      last.value = add_transition(last.value, *step);
    }
  }
  last.stretch = stretch_;
  return last.value;
}

ValueId SplitBuilder::add_transition(ValueId from, const Transition& step) {
  const graph::Op& op = op_of(step.kind);
  const std::string name = fmt::format("{}:{}", out_.values[from].name, op.name);
  const graph::TensorType moved = type(from);
  const ValueId to = add_result(name, moved, after(step, placement(from)));
  add_node({.op = &op, .name = name, .inputs = {from}, .outputs = {to}, .phase = phase_of(from), .layer = layer_},
           step);
  return to;
}

/// A transition has the phase of its first reader. Exception: backward_input takes the place of backward_weight,
/// because later readers in backward_input can share the result, and a schedule can delay backward_weight. But if the
/// transition's source is made in backward_weight, so is its result.
Phase SplitBuilder::phase_of(ValueId from) const {
  const graph::NodeId producer = out_.values[from].producer;
  const bool put_off = producer.exists() && out_.nodes[producer].phase == Phase::backward_weight;
  return phase_ == Phase::backward_weight && !put_off ? Phase::backward_input : phase_;
}

}  // namespace shardrun::partition
