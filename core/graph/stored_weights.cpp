#include "core/graph/stored_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/graph/einsum.h"
#include "core/graph/function_copy.h"

namespace shardrun::graph {
namespace {

/// The dimensions over which a use of a matrix sums: how many, and whether they are its first ones instead of its last.
struct Contracted {
  std::size_t count = 0;
  bool is_first = false;

  bool operator==(const Contracted&) const = default;
};

bool is_table(const Node& node, std::size_t operand) { return operand == 1 && node.op->name == "embedding"; }

bool is_matrix(const Node& node, std::size_t operand) {
  return operand == 1 && (node.op->name == "matmul" || node.op->name == "einsum");
}

/// The dimensions of w over which an einsum x[L… K…], w -> y[L… N…] sums. w is [N… K…] or [K… N…]. Nothing for others.
std::optional<Contracted> contracted_by(const Einsum& einsum) {
  const std::string summed = summed_letters(einsum);
  for (const bool is_first : {false, true}) {
    if (!einsum.a.ends_with(summed) || summed.empty()) {
      return std::nullopt;
    }
    const std::string others = is_first
                                   ? einsum.b.substr(std::min(einsum.b.size(), summed.size()))
                                   : einsum.b.substr(0, einsum.b.size() - std::min(einsum.b.size(), summed.size()));
    const bool fits = is_first ? einsum.b.starts_with(summed) : einsum.b.ends_with(summed);
    if (fits && einsum.result == einsum.a.substr(0, einsum.a.size() - summed.size()) + others) {
      return Contracted{summed.size(), is_first};
    }
  }
  return std::nullopt;
}

std::optional<Contracted> contracted_by(const Node& node) {
  if (node.op->name == "embedding") {
    return Contracted{1, false};
  }
  if (node.op->name == "matmul") {
    return Contracted{static_cast<std::size_t>(node.attributes.integer("contract")),
                      node.attributes.integer("transpose") == 0};
  }
  return contracted_by(parse_einsum(node.attributes.text("spec")));
}

/// How a parameter is used.
struct Use {
  bool as_matrix = false;                ///< at least one use is as a matrix or a table
  bool otherwise = false;                ///< at least one use is another one
  std::vector<Contracted> contractions;  ///< each different one once
  bool has_unknown_contraction = false;
};

IdVector<StateId, Use> uses_of(const Graph& graph) {
  IdVector<StateId, Use> uses(graph.states.size());
  for (const Function& function : graph.functions) {
    const auto note = [&](ValueId value, const Node* matrix_of) {
      const StateId state = function.values[value].state;
      if (!state.exists()) {
        return;
      }
      Use& use = uses[state];
      (matrix_of != nullptr ? use.as_matrix : use.otherwise) = true;
      const std::optional<Contracted> contracted = matrix_of != nullptr ? contracted_by(*matrix_of) : std::nullopt;
      use.has_unknown_contraction |= !contracted;
      if (contracted && std::ranges::find(use.contractions, *contracted) == use.contractions.end()) {
        use.contractions.push_back(*contracted);
      }
    };
    for (const Node& node : function.nodes) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        note(node.inputs[i], is_table(node, i) || is_matrix(node, i) ? &node : nullptr);
      }
    }
    std::ranges::for_each(function.outputs, [&](const Port& port) { note(port.value, nullptr); });
    std::ranges::for_each(function.writes, [&](const StateWrite& write) { note(write.value, nullptr); });
  }
  return uses;
}

/// For each dimension of a row of weights, how many of its indices share one index of the scales. A scale then serves
/// 32 consecutive elements. Nothing if the dimensions cannot be grouped like that.
std::optional<std::vector<std::int64_t>> groups_of(std::span<const std::int64_t> row) {
  std::vector<std::int64_t> groups(row.size(), 1);
  std::int64_t left = block_elements;
  for (std::size_t d = row.size(); d-- > 0 && left > 1;) {
    if (d == 0 || row[d] % left == 0) {
      groups[d] = std::exchange(left, 1);
    } else if (left % row[d] == 0) {
      groups[d] = row[d];
      left /= row[d];
    } else {
      return std::nullopt;
    }
  }
  return groups;
}

/// The groups of int8 weights. REQUIRES: they have some.
std::vector<std::int64_t> groups_of(const State& weights) {
  return *groups_of(std::span(weights.type.shape).last(weights.contracted));
}

std::string scale_name(const State& weights) { return "scale/" + weights.name; }

/// Makes a parameter int8, with scales. Returns false if its use or its dimensions do not allow that.
bool store_in_blocks(Graph& graph, StateId id, const Use& use) {
  State weights = graph.states[id];
  const std::size_t rank = weights.type.shape.size();
  if (use.contractions.size() != 1 || use.has_unknown_contraction || use.contractions.front().count == 0 ||
      use.contractions.front().count > rank) {
    return false;
  }
  weights.contracted = use.contractions.front().count;
  weights.is_turned = use.contractions.front().is_first;
  if (weights.is_turned) {
    const auto middle = static_cast<std::ptrdiff_t>(weights.contracted);
    std::rotate(weights.type.shape.begin(), weights.type.shape.begin() + middle, weights.type.shape.end());
    std::rotate(weights.type.axes.begin(), weights.type.axes.begin() + middle, weights.type.axes.end());
  }
  weights.type.dtype = DType::i8;
  if (!groups_of(std::span(weights.type.shape).last(weights.contracted))) {
    return false;
  }
  State scales{.name = scale_name(weights), .type = weights.type, .layer = weights.layer, .of_parameter = id};
  scales.type.dtype = DType::f16;
  const std::vector<std::int64_t> groups = groups_of(weights);
  for (std::size_t d = 0; d < groups.size(); ++d) {
    const std::size_t dim = rank - groups.size() + d;
    scales.type.shape[dim] = (scales.type.shape[dim] + groups[d] - 1) / groups[d];
    std::string& axis = scales.type.axes[dim];
    axis = groups[d] > 1 && !axis.empty() ? fmt::format("{}/{}", axis, groups[d]) : axis;
  }
  graph.states[id] = std::move(weights);
  graph.add_state(std::move(scales));
  return true;
}

/// Copies a function whose states already have their new types.
class Storing {
 public:
  Storing(const Graph& graph, const Function& function, DType activations)
      : graph_(graph),
        function_(function),
        activations_(activations),
        copy_(function),
        scales_(graph.states.size()),
        rounded_(function.values.size()) {}

  Function run() {
    for (const Node& node : function_.nodes) {
      add_given_before(node.outputs.front());
      add(node);
    }
    add_given_before(function_.values.next());
    return copy_.finish();
  }

 private:
  void add_given_before(ValueId end) {
    const ValueId first = copy_.made().values.next();
    copy_.add_given_before(end);
    for (const ValueId id : IdRange(first, copy_.made().values.next())) {
      Value& value = copy_.made().values[id];
      if (value.state.exists()) {
        value.type = graph_.states[value.state].type;
      }
    }
  }

  void add(Node node) {
    const ValueId original = node.outputs.front();
    const ValueId first = node.inputs.empty() ? ValueId() : node.inputs.front();
    for (ValueId& id : node.inputs) {
      id = copy_.values()[id];
    }
    const bool has_rows = is_table(node, 1);
    const DType dtype = has_rows || is_matrix(node, 1) ? copy_.type(node.inputs[1]).dtype : DType::f32;
    if (dtype == DType::i8) {
      read_blocks(node, has_rows ? "block_embedding" : "block_matmul");
    }
    const std::int32_t layer = node.layer;
    if (dtype == DType::bf16 && !has_rows && activations_ == DType::bf16 && contracted_by(node)) {
      node.inputs.front() = rounded(first, layer);
      if (!has_fixed_order(node.attributes)) {
        node.attributes.add(std::string(fixed_order), std::int64_t{1});
      }
    }
    copy_.append(std::move(node), copy_.values());
    if (has_rows && is_real(dtype) && dtype != DType::f32) {
      copy_.made().values[copy_.values()[original]].type.dtype = dtype;
      copy_.values()[original] = as_float(copy_.values()[original], layer);
    }
  }

  /// A value of the original, as bf16 in the copy.
  ValueId rounded(ValueId original, std::int32_t layer) {
    ValueId& made = rounded_[original];
    if (!made.exists()) {
      made = cast(copy_.values()[original], DType::bf16, layer);
    }
    return made;
  }

  /// Lets a node read int8 weights and their scales.
  void read_blocks(Node& node, const char* op) {
    const StateId weights = copy_.made().values[node.inputs[1]].state;
    node.op = &find_op(op);
    node.attributes = {{"groups", groups_of(graph_.states[weights])}};
    node.inputs.push_back(scales_of(weights));
    std::vector<TensorType> types;
    for (const ValueId id : node.inputs) {
      types.push_back(copy_.type(id));
    }
    node.rule = node.op->rule(node.attributes, types);
    static_cast<void>(infer_types(node.rule, types, node.name));
  }

  ValueId scales_of(StateId weights) {
    ValueId& scales = scales_[weights];
    if (!scales.exists()) {
      const StateId state = graph::scales_of(graph_, weights);
      const State& of = graph_.states[state];
      scales = copy_.made().values.push_back({.name = of.name, .type = of.type, .state = state});
    }
    return scales;
  }

  /// A cast of the value to float32. It takes over the value's cut point.
  ValueId as_float(ValueId id, std::int32_t layer) {
    const ValueId result = cast(id, DType::f32, layer);
    Function& made = copy_.made();
    made.values[result].cut_point = std::exchange(made.values[id].cut_point, {});
    return result;
  }

  ValueId cast(ValueId id, DType dtype, std::int32_t layer) {
    Function& made = copy_.made();
    Node node{.op = &find_op("cast"),
              .name = "cast/" + made.values[id].name,
              .attributes = {{"dtype", to_string(dtype)}},
              .inputs = {id},
              .outputs = {made.values.next()},
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
  const DType activations_;
  FunctionCopy copy_;
  IdVector<StateId, ValueId> scales_;   ///< by int8 weights: the value of their scales
  IdVector<ValueId, ValueId> rounded_;  ///< by value of the original: its cast to bf16
};

}  // namespace

StateId scales_of(const Graph& graph, StateId weights) noexcept {
  return graph.find_state(scale_name(graph.states[weights]));
}

void store_weights(Graph& graph, DType dtype, DType activations) {
  if (dtype == DType::f32) {
    return;
  }
  const IdVector<StateId, Use> uses = uses_of(graph);
  for (const StateId id : uses.ids()) {
    const State& state = graph.states[id];
    if (state.kind != StateKind::parameter || state.type.dtype != DType::f32 || !uses[id].as_matrix ||
        uses[id].otherwise) {
      continue;
    }
    if (dtype == DType::f16 && !uses[id].has_unknown_contraction) {
      graph.states[id].type.dtype = DType::f16;
    } else if (dtype != DType::i8 || !store_in_blocks(graph, id, uses[id])) {
      graph.states[id].type.dtype = DType::bf16;
    }
  }
  for (Function& function : graph.functions) {
    function = Storing(graph, function, activations).run();
  }
}

}  // namespace shardrun::graph
