#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/partition/factor_axes.h"
#include "core/partition/sharded.h"
#include "core/partition/transition.h"

namespace shardrun::partition {
namespace {

using graph::Function;
using graph::Node;
using graph::StateWrite;
using graph::ValueId;
using mesh::AxisId;
using mesh::Owed;
using mesh::Placement;

using OwedStates = std::vector<std::vector<Owed>>;

class Sharder {
 public:
  /// `known`: what each state may owe when something is added to it, and how it is paid; null: it may owe as much as
  /// the values added do.
  Sharder(const graph::Graph& graph, const Function& function, const Placements& placements, const ShardedGraph* known)
      : graph_(graph), function_(function), placements_(placements), known_(known) {
    out_.function.name = function.name;
    out_.function.role = function.role;
    out_.function.rows = function.rows;
    current_.assign(function.values.size(), graph::no_value);
    readers_.assign(function.values.size(), 0);
    writes_of_.resize(function.values.size());
    out_.function.writes.resize(function.writes.size());
  }

  ShardedFunction run() {
    count_readers();
    look_ahead();
    for (const graph::Port& port : function_.inputs) {
      const graph::Value& value = function_.values[index(port.value)];
      current_[index(port.value)] = add_value(value, placements_.by_axes(value.type));
      out_.function.inputs.push_back({port.name, current_[index(port.value)]});
    }
    for (const Node& node : function_.nodes) {
      visit(node);
      write_results(node);
    }
    for (const graph::Port& port : function_.outputs) {
      const ValueId value = read(port.value, graph::Phase::forward);
      out_.function.outputs.push_back({port.name, reshard(value, mesh::replicated(type(value).shape.size()))});
    }
    for (std::size_t w = 0; w < function_.writes.size(); ++w) {
      if (function_.values[index(function_.writes[w].value)].producer < 0) {
        add_write(w);
      }
    }
    return std::move(out_);
  }

  /// What the values added to each state owe, where they all do; nothing for states that nothing is added to.
  [[nodiscard]] const std::map<graph::StateId, std::vector<Owed>>& offered() const { return offered_; }

 private:
  [[nodiscard]] const graph::TensorType& type(ValueId id) const { return out_.function.values[index(id)].type; }
  [[nodiscard]] const Placement& placement(ValueId id) const { return out_.placements[index(id)]; }

  void count_readers() {
    for (const Node& node : function_.nodes) {
      const std::set<ValueId> operands(node.inputs.begin(), node.inputs.end());
      for (const ValueId id : operands) {
        ++readers_[index(id)];
      }
    }
    for (const graph::Port& port : function_.outputs) {
      ++readers_[index(port.value)];
    }
    for (std::size_t w = 0; w < function_.writes.size(); ++w) {
      ++readers_[index(function_.writes[w].value)];
      writes_of_[index(function_.writes[w].value)].push_back(w);
    }
  }

  /// wanted_: where cut points are; and what elementwise ops make for one alone is wanted there too, so that what their
  /// operands owe is paid by a reduce_scatter where the cut point is split.
  void look_ahead() {
    wanted_.resize(function_.values.size());
    for (std::size_t v = 0; v < function_.values.size(); ++v) {
      const auto point = placements_.cut_points.find(function_.values[v].cut_point);
      if (point != placements_.cut_points.end()) {
        wanted_[v] = point->second;
      }
    }
    for (auto node = function_.nodes.rbegin(); node != function_.nodes.rend(); ++node) {
      const std::optional<Placement>& result = wanted_[index(node->outputs[0])];
      if (result && is_elementwise(*node)) {
        for (std::size_t i = 0; i < node->inputs.size(); ++i) {
          want(*node, i, *result);
        }
      }
    }
  }

  static bool is_elementwise(const Node& node) {
    return node.outputs.size() == 1 &&
           std::all_of(node.rule.factors.begin(), node.rule.factors.end(),
                       [](const graph::Factor& factor) { return factor.kind == graph::FactorClass::pass_through; });
  }

  void want(const Node& node, std::size_t input, const Placement& result) {
    const ValueId id = node.inputs[input];
    const std::vector<int>& dims = node.rule.inputs[std::min(input, node.rule.inputs.size() - 1)];
    const graph::NodeId producer = function_.values[index(id)].producer;
    if (!wanted_[index(id)] && readers_[index(id)] == 1 && dims == node.rule.outputs[0] && producer >= 0 &&
        is_elementwise(function_.nodes[index(producer)])) {
      wanted_[index(id)] = result;
    }
  }

  ValueId add_value(graph::Value value, Placement placement) {
    out_.function.values.push_back(std::move(value));
    out_.placements.push_back(std::move(placement));
    return static_cast<ValueId>(out_.function.values.size()) - 1;
  }

  ValueId add_result(const std::string& name, const graph::TensorType& type, Placement placement) {
    return add_value({.name = name, .type = type, .producer = static_cast<graph::NodeId>(out_.function.nodes.size())},
                     std::move(placement));
  }

  void add_node(Node node, std::optional<Transition> transition) {
    out_.function.nodes.push_back(std::move(node));
    out_.transitions.push_back(transition);
  }

  /// The value where the plan says that it is read, as new as it is needed.
  ValueId read(ValueId old, graph::Phase phase) {
    ValueId& id = current_[index(old)];
    const graph::Value& value = function_.values[index(old)];
    if (id == graph::no_value && value.state >= 0) {
      id = add_value(value, known_ == nullptr ? placements_.states[index(value.state)]
                                              : known_->settlements[index(value.state)].after);
    }
    if (value.state < 0 || phase == graph::Phase::update) {
      return id;
    }
    const Gather& gather = placements_.gathers[index(value.state)];
    const Placement& use = placements_.uses[index(value.state)];
    return gather.unit < 0 ? reshard(id, use) : gathered(old, id, gather, use);
  }

  /// The value brought together for this stretch of the function. What the stretch before has, it may use too: in
  /// between nothing else is brought, unless stages do something else between forward and backward.
  ValueId gathered(ValueId old, ValueId state, const Gather& gather, const Placement& use) {
    Gathered& last = gathered_[old];
    const bool again = placements_.stages ? stretch_ > last.stretch : !gather.keep && stretch_ > last.stretch + 1;
    if (last.value == graph::no_value || again) {
      const auto number =
          gathers_.emplace(std::pair{gather.unit, stretch_}, static_cast<std::int32_t>(gathers_.size()));
      last.value = state;
      while (std::optional<Transition> step = next_step(placement(last.value), use)) {
        step->gather = number.first->second;
        last.value = add_transition(last.value, *step);
      }
    }
    last.stretch = stretch_;
    return last.value;
  }

  /// A stretch ends where the next node is of another layer, or backward begins.
  void count_stretches(const Node& node) {
    const std::pair<bool, std::int32_t> now = {node.phase != graph::Phase::forward, node.layer};
    stretch_ += now == stretch_of_ ? 0 : 1;
    stretch_of_ = now;
  }

  /// What varies goes on varying.
  ValueId reshard(ValueId from, Placement to) {
    to.varying = placement(from).varying;
    const auto known = resharded_.find({from, to});
    if (known != resharded_.end()) {
      return known->second;
    }
    ValueId at = from;
    while (const std::optional<Transition> step = next_step(placement(at), to)) {
      at = add_transition(at, *step);
    }
    if (placement(at) != to) {
      throw Error(
          ErrorCode::internal,
          fmt::format("function {}: {} cannot go from {} to {}", function_.name, out_.function.values[index(from)].name,
                      to_string(placement(from), placements_.mesh), to_string(to, placements_.mesh)));
    }
    resharded_.emplace(std::pair{from, to}, at);
    return at;
  }

  ValueId add_transition(ValueId from, const Transition& step) {
    const graph::Op& op = op_of(step.kind);
    const std::string name = fmt::format("{}:{}", out_.function.values[index(from)].name, op.name);
    const graph::TensorType moved = type(from);
    const ValueId to = add_result(name, moved, after(step, placement(from)));
    add_node({.op = &op, .name = name, .inputs = {from}, .outputs = {to}, .phase = phase_of(from), .layer = layer_},
             step);
    return to;
  }

  /// When a transition is done: with its first reader. But what a parameter's gradient is the first to read, that of an
  /// activation may read too, and a schedule may put off the former alone.
  [[nodiscard]] graph::Phase phase_of(ValueId from) const {
    using graph::Phase;
    const graph::NodeId producer = out_.function.values[index(from)].producer;
    const bool put_off = producer >= 0 && out_.function.nodes[index(producer)].phase == Phase::backward_weight;
    return phase_ == Phase::backward_weight && !put_off ? Phase::backward_input : phase_;
  }

  void visit(const Node& node) {
    phase_ = node.phase;
    layer_ = node.layer;
    count_stretches(node);
    FactorAxes factors(node.rule, node.phase == graph::Phase::update);
    // An update is made where the optimizer's states are; the axes' rules are those of what is computed with it.
    for (std::size_t o = 0; o < node.outputs.size() && node.phase != graph::Phase::update; ++o) {
      const std::optional<Placement>& wanted = wanted_[index(node.outputs[o])];
      factors.follow(node.rule.outputs[o],
                     wanted ? *wanted : placements_.by_axes(function_.values[index(node.outputs[o])].type));
    }
    std::vector<ValueId> operands;
    for (const ValueId id : node.inputs) {
      operands.push_back(read(id, node.phase));
    }
    for (const std::size_t i : larger_first(operands)) {
      factors.follow(node.rule.inputs[i], placement(operands[i]));
    }
    const std::vector<AxisId> varying = varying_of(operands, factors);
    std::vector<Owed> owed = factors.owed();
    const bool passes = owed_may_pass(node, operands, factors);
    if (!passes && node.op->variadic_sum) {
      operands = sum_alike(node, operands, factors);
    }
    Node made = node;
    made.inputs.clear();
    for (std::size_t i = 0; i < operands.size(); ++i) {
      Placement to = factors.of(node.rule.inputs[std::min(i, node.rule.inputs.size() - 1)]);
      const std::vector<Owed> operand_owes = placement(operands[i]).partial;
      if (keeps_owing(node, operands, i, factors)) {
        to.partial = operand_owes;
        owed.insert(owed.end(), operand_owes.begin(), operand_owes.end());
      }
      made.inputs.push_back(pay(node, i, operands[i], to));
    }
    finish(node, std::move(made), factors, {.dims = {}, .partial = std::move(owed), .varying = varying});
  }

  /// The axes over which results vary: those of the operands, but where the node itself is split each rank's result is
  /// a part of one.
  [[nodiscard]] std::vector<AxisId> varying_of(const std::vector<ValueId>& operands, const FactorAxes& factors) const {
    std::set<AxisId> varying;
    for (const ValueId id : operands) {
      varying.insert(placement(id).varying.begin(), placement(id).varying.end());
    }
    std::erase_if(varying, [&](AxisId axis) { return factors.uses(axis); });
    return {varying.begin(), varying.end()};
  }

  /// Reshards an operand; what is paid is paid for all later readers too.
  ValueId pay(const Node& node, std::size_t i, ValueId operand, const Placement& to) {
    const ValueId moved = reshard(operand, to);
    if (!placement(operand).partial.empty() && to.partial.empty() && i < node.inputs.size() &&
        current_[index(node.inputs[i])] == operand) {
      current_[index(node.inputs[i])] = moved;
    }
    return moved;
  }

  /// `of_all`: what each result owes, and over what it varies.
  void finish(const Node& node, Node made, const FactorAxes& factors, Placement of_all) {
    std::vector<Owed>& owed = of_all.partial;
    std::sort(owed.begin(), owed.end());
    owed.erase(std::unique(owed.begin(), owed.end()), owed.end());
    made.outputs.clear();
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const graph::Value& value = function_.values[index(node.outputs[o])];
      Placement placed = factors.of(node.rule.outputs[o]);
      placed.partial = of_all.partial;
      placed.varying = of_all.varying;
      made.outputs.push_back(add_result(value.name, value.type, std::move(placed)));
    }
    const std::vector<ValueId> results = made.outputs;
    add_node(std::move(made), factors.exchange());
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const auto point = placements_.cut_points.find(function_.values[index(node.outputs[o])].cut_point);
      current_[index(node.outputs[o])] =
          point == placements_.cut_points.end() ? results[o] : reshard(results[o], point->second);
    }
  }

  /// In an update the most split first among those of one size.
  [[nodiscard]] std::vector<std::size_t> larger_first(const std::vector<ValueId>& operands) const {
    std::vector<std::size_t> order(operands.size());
    std::iota(order.begin(), order.end(), 0);
    const auto key = [&](std::size_t i) {
      const std::vector<std::vector<AxisId>>& dims = placement(operands[i]).dims;
      const std::size_t axes = std::accumulate(dims.begin(), dims.end(), std::size_t{0},
                                               [](std::size_t sum, const auto& split) { return sum + split.size(); }) +
                               placement(operands[i]).flat.size();
      return std::pair{graph::element_count(type(operands[i])), phase_ == graph::Phase::update ? axes : 0};
    };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
    return order;
  }

  /// Whether all operands of an op that is linear in them together owe the same, so that its result may.
  [[nodiscard]] bool owed_may_pass(const Node& node, const std::vector<ValueId>& operands,
                                   const FactorAxes& factors) const {
    if (node.rule.linearity != graph::Linearity::together) {
      return false;
    }
    const std::vector<Owed>& first = placement(operands.front()).partial;
    return std::all_of(operands.begin(), operands.end(), [&](ValueId id) { return placement(id).partial == first; }) &&
           only_free_sums(first, factors);
  }

  [[nodiscard]] static bool only_free_sums(const std::vector<Owed>& owed, const FactorAxes& factors) {
    return std::all_of(owed.begin(), owed.end(),
                       [&](const Owed& each) { return each.reduction == Reduction::sum && !factors.uses(each.axis); });
  }

  /// Whether operand i goes in with what it owes.
  [[nodiscard]] bool keeps_owing(const Node& node, const std::vector<ValueId>& operands, std::size_t i,
                                 const FactorAxes& factors) const {
    if (placement(operands[i]).partial.empty()) {
      return false;
    }
    const bool read_once = i < node.inputs.size() && readers_[index(node.inputs[i])] == 1;
    if (node.rule.linearity == graph::Linearity::together) {
      return owed_may_pass(node, operands, factors) && all_read_once(node);
    }
    const std::vector<int>& linear = node.rule.linear;
    if (node.rule.linearity != graph::Linearity::each || !read_once ||
        std::find(linear.begin(), linear.end(), static_cast<int>(i)) == linear.end()) {
      return false;
    }
    for (std::size_t other = 0; other < operands.size(); ++other) {
      if (other != i && !placement(operands[other]).partial.empty()) {
        return false;
      }
    }
    return only_free_sums(placement(operands[i]).partial, factors);
  }

  [[nodiscard]] bool all_read_once(const Node& node) const {
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return readers_[index(id)] == 1; });
  }

  /// Operands of a sum that owe the same are summed before it is paid: once for each kind instead of once for each.
  std::vector<ValueId> sum_alike(const Node& node, const std::vector<ValueId>& operands, const FactorAxes& factors) {
    std::map<std::vector<Owed>, std::vector<ValueId>> by_owed;
    for (const ValueId id : operands) {
      by_owed[placement(id).partial].push_back(id);
    }
    std::vector<ValueId> sums;
    for (const auto& [owed, alike] : by_owed) {
      if (owed.empty() || alike.size() == 1 || !only_free_sums(owed, factors)) {
        sums.insert(sums.end(), alike.begin(), alike.end());
        continue;
      }
      Placement placed = factors.of(node.rule.outputs[0]);
      placed.partial = owed;
      placed.varying = varying_of(alike, factors);
      Node sum = node;
      sum.inputs.clear();
      for (const ValueId id : alike) {
        sum.inputs.push_back(reshard(id, placed));
      }
      sum.name = fmt::format("{}/owed", node.name);
      sum.outputs = {add_result(sum.name, function_.values[index(node.outputs[0])].type, placed)};
      sums.push_back(sum.outputs[0]);
      add_node(std::move(sum), std::nullopt);
    }
    return sums;
  }

  /// What of a node's results goes to states goes there at once.
  void write_results(const Node& node) {
    std::vector<std::size_t> writes;
    for (const ValueId id : node.outputs) {
      writes.insert(writes.end(), writes_of_[index(id)].begin(), writes_of_[index(id)].end());
    }
    std::sort(writes.begin(), writes.end());
    for (const std::size_t w : writes) {
      add_write(w);
    }
  }

  /// Writes keep their order, in which those to one state are made.
  void add_write(std::size_t w) {
    const StateWrite& write = function_.writes[w];
    const ValueId value = read(write.value, graph::Phase::update);
    Placement to = placements_.states[index(write.state)];
    require_varying(write.state, placement(value), to);
    if (write.mode != StateWrite::Mode::assign) {
      to.partial = owed_by(write, value, to);
    }
    out_.function.writes[w] = {.state = write.state, .value = reshard(value, to), .mode = write.mode};
  }

  /// What differs from rank to rank goes to what may, or is for the host to read.
  void require_varying(graph::StateId id, const Placement& value, const Placement& to) const {
    const graph::State& state = graph_.states[index(id)];
    for (const AxisId axis : value.varying) {
      if (!to.varies(axis) && state.kind != graph::StateKind::metric) {
        throw Error(
            ErrorCode::job,
            fmt::format("{} is the same along mesh axis '{}', but what function {} writes to it varies there: a "
                        "plan that lets tensors vary lets all that follow from them vary too. Of gradients that "
                        "are clipped by the norm of all ([train] clip above 0) that is every tensor",
                        state.name, placements_.mesh.axes[index(axis)].name, function_.name));
      }
    }
  }

  /// What a state that something is added to goes on owing.
  std::vector<Owed> owed_by(const StateWrite& write, ValueId value, const Placement& state) {
    std::vector<Owed> offer;
    for (const Owed& owed : placement(value).partial) {
      if (owed.reduction == Reduction::sum && !state.splits(owed.axis)) {
        offer.push_back(owed);
      }
    }
    const auto [known, is_first] = offered_.emplace(write.state, offer);
    if (!is_first) {
      std::erase_if(known->second,
                    [&](const Owed& owed) { return std::find(offer.begin(), offer.end(), owed) == offer.end(); });
    }
    return known_ == nullptr ? offer : known_->owed[index(write.state)];
  }

  const graph::Graph& graph_;
  const Function& function_;
  struct Gathered {
    ValueId value = graph::no_value;
    std::int32_t stretch = -1;  ///< in which it was read last
  };

  const Placements& placements_;
  const ShardedGraph* known_;
  ShardedFunction out_;
  std::vector<ValueId> current_;                     ///< of each value of the function what stands for it now
  std::vector<std::optional<Placement>> wanted_;     ///< of each value
  std::vector<int> readers_;                         ///< nodes, writes and outputs that read each value
  std::vector<std::vector<std::size_t>> writes_of_;  ///< of each value
  std::map<std::pair<ValueId, Placement>, ValueId> resharded_;
  std::map<graph::StateId, std::vector<Owed>> offered_;
  graph::Phase phase_ = graph::Phase::forward;
  std::int32_t layer_ = -1;
  std::int32_t stretch_ = 0;
  std::pair<bool, std::int32_t> stretch_of_ = {false, -1};
  std::map<ValueId, Gathered> gathered_;                                   ///< of states that are gathered at use
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> gathers_;  ///< by unit and stretch
};

/// What each state owes within a step: what all that is added to it, in any function, owes.
OwedStates owed_states(const graph::Graph& graph, const Placements& placements) {
  std::map<graph::StateId, std::vector<Owed>> common;
  for (const Function& function : graph.functions) {
    Sharder sharder(graph, function, placements, nullptr);
    (void)sharder.run();
    for (const auto& [state, owed] : sharder.offered()) {
      const auto [known, is_first] = common.emplace(state, owed);
      if (!is_first) {
        std::erase_if(known->second, [&, &now = owed](const Owed& each) {
          return std::find(now.begin(), now.end(), each) == now.end();
        });
      }
    }
  }
  OwedStates states(graph.states.size());
  for (auto& [state, owed] : common) {
    states[index(state)] = std::move(owed);
  }
  return states;
}

}  // namespace

ShardedGraph shard(const graph::Graph& graph, const Placements& placements) {
  ShardedGraph sharded;
  sharded.owed = owed_states(graph, placements);
  for (std::size_t s = 0; s < graph.states.size(); ++s) {
    sharded.settlements.push_back(
        settlement_of(graph.states[s], placements.states[s], placements.updates[s], sharded.owed[s]));
  }
  hook_settlements(graph, placements, sharded.settlements);
  for (const Function& function : graph.functions) {
    sharded.functions.push_back(Sharder(graph, function, placements, &sharded).run());
  }
  return sharded;
}

std::string to_string(const ShardedGraph& sharded, const graph::Graph& graph, const mesh::Mesh& mesh) {
  std::string text;
  for (std::size_t s = 0; s < sharded.owed.size(); ++s) {
    if (!sharded.owed[s].empty()) {
      const Placement owing{.dims = {}, .partial = sharded.owed[s]};
      text += fmt::format("state {}: {} within a step\n", graph.states[s].name, to_string(owing, mesh));
    }
  }
  for (const ShardedFunction& function : sharded.functions) {
    text += fmt::format("\nfunction {} rows {}\n", function.function.name, function.function.rows);
    for (const Node& node : function.function.nodes) {
      for (const ValueId id : node.outputs) {
        text += fmt::format("  {} = {} {}\n", function.function.values[index(id)].name, node.op->name,
                            to_string(function.placements[index(id)], mesh));
      }
    }
  }
  return text;
}

}  // namespace shardrun::partition
