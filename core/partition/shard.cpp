#include "core/partition/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/graph/graph.h"
#include "core/partition/factor_axes.h"
#include "core/partition/split_builder.h"
#include "core/partition/transition.h"

namespace shardrun::partition {
namespace {

using graph::Function;
using graph::Node;
using graph::StateWrite;
using graph::ValueId;
using mesh::AxisId;
using mesh::Partial;
using mesh::Placement;

struct FunctionSharding {
  SplitFunction function;
  /// For each state that the function adds to: the sums in which all added values are partial.
  std::map<graph::StateId, std::vector<mesh::Partial>> partial;
};

/// Keeps in `partial` only the elements of `others`.
void keep_common(std::vector<Partial>& partial, const std::vector<Partial>& others) {
  std::erase_if(partial,
                [&](const Partial& each) { return std::find(others.begin(), others.end(), each) == others.end(); });
}

class Sharder {
 public:
  Sharder(const graph::Graph& graph, const Function& function, const Placements& placements, const ShardedGraph* known)
      : graph_(graph),
        function_(function),
        placements_(placements),
        known_(known),
        out_(function, placements),
        current_(function.values.size()),
        readers_(count_readers(function)),
        wanted_(wanted_placements(function, placements, readers_)),
        writes_of_(function.values.size()) {
    for (std::size_t w = 0; w < function.writes.size(); ++w) {
      writes_of_[function.writes[w].value].push_back(w);
    }
  }

  FunctionSharding run() {
    for (const graph::Port& port : function_.inputs) {
      const graph::Value& value = function_.values[port.value];
      current_[port.value] = out_.add_value(value, placements_.by_axes(value.type));
      out_.function().inputs.push_back({{port.name, current_[port.value]}});
    }
    for (const Node& node : function_.nodes) {
      visit(node);
      write_results(node);
    }
    for (const graph::Port& port : function_.outputs) {
      const ValueId value = read(port.value, graph::Phase::forward);
      const std::size_t rank = out_.type(value).shape.size();
      out_.function().outputs.push_back({port.name, out_.reshard(value, mesh::replicated(rank))});
    }
    for (std::size_t w = 0; w < function_.writes.size(); ++w) {
      if (!function_.values[function_.writes[w].value].producer.exists()) {
        add_write(w);
      }
    }
    return {std::move(out_.function()), std::move(partial_)};
  }

 private:
  /// The current version of a value, in the placement in which nodes of this phase read it.
  ValueId read(ValueId old, graph::Phase phase) {
    ValueId& id = current_[old];
    const graph::Value& value = function_.values[old];
    if (!id.exists() && value.state.exists()) {
      id = out_.add_value(
          value, known_ == nullptr ? placements_.states[value.state] : known_->finalizations[value.state].after);
    }
    if (!value.state.exists() || phase == graph::Phase::update) {
      return id;
    }
    const Gather& gather = placements_.gathers[value.state];
    const Placement& use = placements_.uses[value.state];
    return gather.unit < 0 ? out_.reshard(id, use) : out_.gather(id, gather, use);
  }

  void visit(const Node& node) {
    out_.begin(node);
    FactorAxes factors(function_, node, placements_);
    follow_results(node, factors);
    std::vector<ValueId> operands;
    for (const ValueId id : node.inputs) {
      operands.push_back(read(id, node.phase));
    }
    for (const std::size_t i : larger_first(operands)) {
      factors.follow(node.rule.inputs[i], out_.placement(operands[i]));
    }
    const std::vector<AxisId> varying = varying_of(operands, factors);
    if (node.op->variadic_sum && !partial_operands(node, operands, factors).all_alike()) {
      operands = sum_alike(node, operands, factors);
    }
    const PartialOperands partial = partial_operands(node, operands, factors);
    const std::vector<Partial> shared = shared_sums(node, operands, factors);
    if (shared.empty()) {
      factors.own_reduced();
    }
    Placement of_all{.dims = {}, .partial = shared, .varying = varying};
    Node made = node;
    made.inputs.clear();
    for (std::size_t i = 0; i < operands.size(); ++i) {
      Placement to = factors.of_operand(i);
      if (partial.stays(i)) {
        to.partial = partial.partial(i);
        of_all.partial.insert(of_all.partial.end(), to.partial.begin(), to.partial.end());
      }
      if (!shared.empty() && !shared_of(operands[i]).empty()) {
        to.partial.insert(to.partial.end(), shared.begin(), shared.end());
        std::ranges::sort(to.partial);
      }
      made.inputs.push_back(move_operand(node, i, operands[i], to));
    }
    add_made(node, std::move(made), factors, of_all);
  }

  /// Gives the node's factors the axes that are wanted for its results. The nodes of an update have none: they follow
  /// the placements of the optimizer's states.
  void follow_results(const Node& node, FactorAxes& factors) const {
    for (std::size_t o = 0; o < node.outputs.size() && node.phase != graph::Phase::update; ++o) {
      const std::optional<Placement>& wanted = wanted_[node.outputs[o]];
      factors.follow(node.rule.outputs[o],
                     wanted ? *wanted : placements_.by_axes(function_.values[node.outputs[o]].type));
    }
  }

  [[nodiscard]] PartialOperands partial_operands(const Node& node, const std::vector<ValueId>& operands,
                                                 const FactorAxes& factors) const {
    std::vector<std::vector<Partial>> partial;
    for (const ValueId id : operands) {
      partial.push_back(out_.placement(id).partial);
      std::erase_if(partial.back(), [&](const Partial& each) { return out_.placement(id).splits(each.axis); });
    }
    std::vector<bool> read_once;
    for (const ValueId id : node.inputs) {
      read_once.push_back(readers_[id] == 1);
    }
    return {node, std::move(partial), std::move(read_once), factors};
  }

  /// The sums over axes that also split the value: a halo gives several ranks the same index, and each of them has a
  /// part of its sum.
  [[nodiscard]] std::vector<Partial> shared_of(ValueId id) const {
    std::vector<Partial> shared = out_.placement(id).partial;
    std::erase_if(shared, [&](const Partial& each) { return !out_.placement(id).splits(each.axis); });
    return shared;
  }

  /// The sums of shared_of() in which operands, and so all results, stay partial: the node is linear in these operands
  /// and its shards compute the same intervals. If the result is empty, shared sums must be added up before the node.
  [[nodiscard]] std::vector<Partial> shared_sums(const Node& node, const std::vector<ValueId>& operands,
                                                 const FactorAxes& factors) const {
    std::vector<Partial> all;
    std::size_t sums = 0;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const std::vector<Partial> shared = shared_of(operands[i]);
      if (shared.empty()) {
        continue;
      }
      const bool is_linear = node.rule.linearity == graph::Linearity::together ||
                             (node.rule.linearity == graph::Linearity::each &&
                              std::ranges::find(node.rule.linear, i) != node.rule.linear.end());
      const bool alike = std::ranges::all_of(
          shared, [&](const Partial& each) { return factors.shares(i, out_.placement(operands[i]), each.axis); });
      if (!is_linear || !alike || (sums > 0 && shared != all)) {
        return {};
      }
      all = shared;
      ++sums;
    }
    const bool fits = node.rule.linearity == graph::Linearity::together ? sums == operands.size() : sums == 1;
    return fits ? all : std::vector<Partial>{};
  }

  /// The axes over which results vary: the operands' axes, except those that split the node's factors. Along the
  /// latter, ranks compute parts of one result.
  [[nodiscard]] std::vector<AxisId> varying_of(const std::vector<ValueId>& operands, const FactorAxes& factors) const {
    std::set<AxisId> varying;
    for (const ValueId id : operands) {
      varying.insert(out_.placement(id).varying.begin(), out_.placement(id).varying.end());
    }
    std::erase_if(varying, [&](AxisId axis) { return factors.uses(axis); });
    return {varying.begin(), varying.end()};
  }

  /// Reshards an operand. If that reduces a partial value, later readers get the reduced value too. A rank that has the
  /// whole value slices out its part with the halo. Otherwise it first gets its part, and halos are exchanged then.
  ValueId move_operand(const Node& node, std::size_t i, ValueId operand, const Placement& to) {
    const Placement from = out_.placement(operand);
    Placement part = to;
    part.halos.clear();
    for (const mesh::Halo& halo : to.halos) {
      const AxisId axis = to.dims[halo.dim].front();
      if (from.dims[halo.dim] == to.dims[halo.dim] && from.halo(halo.dim) != nullptr) {
        part.halos.push_back(halo);
      } else if (from.dims[halo.dim].empty() && !from.splits(axis) && from.partial.empty()) {
        part.dims[halo.dim].clear();
      }
    }
    const ValueId moved = out_.reshard(operand, part);
    if (!from.partial.empty() && to.partial.empty() && i < node.inputs.size() && current_[node.inputs[i]] == operand) {
      current_[node.inputs[i]] = moved;
    }
    return out_.reshard(moved, to);
  }

  /// Adds the node with its results. `of_all`: the sums in which all results are partial because operands are, and the
  /// axes over which all results vary.
  void add_made(const Node& node, Node made, const FactorAxes& factors, const Placement& of_all) {
    made.outputs.clear();
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const graph::Value& value = function_.values[node.outputs[o]];
      Placement placed = factors.of_result(o);
      placed.partial.insert(placed.partial.end(), of_all.partial.begin(), of_all.partial.end());
      std::sort(placed.partial.begin(), placed.partial.end());
      placed.partial.erase(std::unique(placed.partial.begin(), placed.partial.end()), placed.partial.end());
      placed.varying = of_all.varying;
      made.outputs.push_back(out_.add_result(value.name, value.type, std::move(placed)));
    }
    const std::vector<ValueId> results = made.outputs;
    out_.add_node(std::move(made), factors.exchange());
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const auto point = placements_.cut_points.find(function_.values[node.outputs[o]].cut_point);
      current_[node.outputs[o]] =
          point == placements_.cut_points.end() ? results[o] : out_.reshard(results[o], point->second);
    }
  }

  /// The indices of the operands, largest operand first. In an update, operands of equal size are ordered by the number
  /// of axes that split them, most first; after that, operands without overlapping parts come first.
  [[nodiscard]] std::vector<std::size_t> larger_first(const std::vector<ValueId>& operands) const {
    std::vector<std::size_t> order(operands.size());
    std::iota(order.begin(), order.end(), 0);
    const auto key = [&](std::size_t i) {
      const std::vector<std::vector<AxisId>>& dims = out_.placement(operands[i]).dims;
      const std::size_t axes = std::accumulate(dims.begin(), dims.end(), std::size_t{0},
                                               [](std::size_t sum, const auto& split) { return sum + split.size(); }) +
                               out_.placement(operands[i]).flat.size();
      const std::vector<mesh::Halo>& halos = out_.placement(operands[i]).halos;
      const bool update = out_.phase() == graph::Phase::update;
      return std::tuple{graph::element_count(out_.type(operands[i])), update ? axes : 0,
                        update && std::ranges::none_of(halos, &mesh::Halo::overlaps)};
    };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
    return order;
  }

  /// Adds up those operands of a sum that are partial over the same axes, so that each set of axes needs one reduction.
  std::vector<ValueId> sum_alike(const Node& node, const std::vector<ValueId>& operands, const FactorAxes& factors) {
    std::map<std::vector<Partial>, std::vector<ValueId>> by_partial;
    for (const ValueId id : operands) {
      by_partial[out_.placement(id).partial].push_back(id);
    }
    std::vector<ValueId> sums;
    for (const auto& [partial, alike] : by_partial) {
      if (partial.empty() || alike.size() == 1 || !only_free_sums(partial, factors)) {
        sums.insert(sums.end(), alike.begin(), alike.end());
        continue;
      }
      Placement placed = factors.of_result(0);
      placed.partial = partial;
      placed.varying = varying_of(alike, factors);
      Node sum = node;
      sum.inputs.clear();
      for (const ValueId id : alike) {
        sum.inputs.push_back(out_.reshard(id, placed));
      }
      sum.name = fmt::format("{}/owed", node.name);
      sum.outputs = {out_.add_result(sum.name, function_.values[node.outputs[0]].type, placed)};
      sums.push_back(sum.outputs[0]);
      out_.add_node(std::move(sum), std::nullopt);
    }
    return sums;
  }

  /// Adds the state writes of a node's results right after the node.
  void write_results(const Node& node) {
    std::vector<std::size_t> writes;
    for (const ValueId id : node.outputs) {
      writes.insert(writes.end(), writes_of_[id].begin(), writes_of_[id].end());
    }
    std::sort(writes.begin(), writes.end());
    for (const std::size_t w : writes) {
      add_write(w);
    }
  }

  /// Reshards a write's value. The write keeps its index, because writes to one state are made in that order.
  void add_write(std::size_t w) {
    const StateWrite& write = function_.writes[w];
    const ValueId value = read(write.value, graph::Phase::update);
    Placement to = placements_.states[write.state];
    require_varying(write.state, out_.placement(value), to);
    if (write.mode != StateWrite::Mode::assign) {
      to.partial = partial_of(write, value, to);
    }
    out_.function().writes[w] = {.state = write.state, .value = out_.reshard(value, to), .mode = write.mode};
  }

  /// Throws Error{job} if a varying value is written to a state that does not vary over the same axes and is no metric.
  void require_varying(graph::StateId id, const Placement& value, const Placement& to) const {
    const graph::State& state = graph_.states[id];
    for (const AxisId axis : value.varying) {
      if (!to.varies(axis) && state.kind != graph::StateKind::metric) {
        throw Error(
            ErrorCode::job,
            fmt::format("{} is the same along mesh axis '{}', but what function {} writes to it varies there: a "
                        "plan that lets tensors vary lets all that follow from them vary too. Of gradients that "
                        "are clipped by the norm of all ([train] clip above 0) that is every tensor",
                        state.name, placements_.mesh.axes[axis].name, function_.name));
      }
    }
  }

  /// The sums in which a state stays partial after something is added to it.
  std::vector<Partial> partial_of(const StateWrite& write, ValueId value, const Placement& state) {
    std::vector<Partial> offer;
    for (const Partial& each : out_.placement(value).partial) {
      if (each.reduction == Reduction::sum && !state.splits(each.axis) && !out_.placement(value).splits(each.axis)) {
        offer.push_back(each);
      }
    }
    const auto [known, is_first] = partial_.emplace(write.state, offer);
    if (!is_first) {
      keep_common(known->second, offer);
    }
    return known_ == nullptr ? offer : known_->partial[write.state];
  }

  const graph::Graph& graph_;
  const Function& function_;
  const Placements& placements_;
  const ShardedGraph* known_;
  SplitBuilder out_;
  IdVector<ValueId, ValueId> current_;  ///< for each original value: its current version
  IdVector<ValueId, int> readers_;
  IdVector<ValueId, std::optional<Placement>> wanted_;
  IdVector<ValueId, std::vector<std::size_t>> writes_of_;
  std::map<graph::StateId, std::vector<Partial>> partial_;
};

/// Splits one function. `known`: has the partial sums and the finalization of each state. Null: every state stays
/// partial in all sums in which the added values are.
FunctionSharding shard_function(const graph::Graph& graph, const Function& function, const Placements& placements,
                                const ShardedGraph* known) {
  return Sharder(graph, function, placements, known).run();
}

/// The sums in which each state is partial within a step: those that all values added to it have in common.
IdVector<graph::StateId, std::vector<Partial>> partial_states(const graph::Graph& graph, const Placements& placements) {
  std::map<graph::StateId, std::vector<Partial>> common;
  for (const graph::Function& function : graph.functions) {
    for (const auto& [state, partial] : shard_function(graph, function, placements, nullptr).partial) {
      const auto [known, is_first] = common.emplace(state, partial);
      if (!is_first) {
        keep_common(known->second, partial);
      }
    }
  }
  IdVector<graph::StateId, std::vector<Partial>> states(graph.states.size());
  for (auto& [state, partial] : common) {
    states[state] = std::move(partial);
  }
  return states;
}

}  // namespace

ShardedGraph shard(const graph::Graph& graph, const Placements& placements) {
  ShardedGraph sharded;
  sharded.partial = partial_states(graph, placements);
  for (const graph::StateId s : graph.states.ids()) {
    sharded.finalizations.push_back(
        finalization_of(graph.states[s], placements.states[s], placements.updates[s], sharded.partial[s]));
  }
  hook_finalizations(graph, placements, sharded.finalizations);
  for (const graph::Function& function : graph.functions) {
    sharded.functions.push_back(shard_function(graph, function, placements, &sharded).function);
  }
  return sharded;
}

std::string to_string(const ShardedGraph& sharded, const graph::Graph& graph, const mesh::Mesh& mesh) {
  std::string text;
  for (const graph::StateId s : sharded.partial.ids()) {
    if (!sharded.partial[s].empty()) {
      const mesh::Placement partial{.dims = {}, .partial = sharded.partial[s]};
      text += fmt::format("state {}: {} within a step\n", graph.states[s].name, to_string(partial, mesh));
    }
  }
  for (const SplitFunction& function : sharded.functions) {
    text += fmt::format("\nfunction {} rows {}\n", function.name, function.rows);
    for (const SplitNode& node : function.nodes) {
      for (const graph::ValueId id : node.outputs) {
        const SplitValue& value = function.values[id];
        text += fmt::format("  {} = {} {}\n", value.name, node.op->name, to_string(value.placement, mesh));
      }
    }
  }
  return text;
}

}  // namespace shardrun::partition
