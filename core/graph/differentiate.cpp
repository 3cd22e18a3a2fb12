#include <fmt/format.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/graph/builder.h"

namespace shardrun::graph {
namespace {

/// The message for an op that has no gradient.
std::string without_gradient(const std::string& op) {
  constexpr std::string_view suffix = "_gradient";
  const std::string_view first =
      op.ends_with(suffix) ? std::string_view(op).substr(0, op.size() - suffix.size()) : std::string_view();
  return fmt::format("the op {} has no gradient{}", op,
                     first.empty() ? "" : fmt::format("; second derivatives of {} are not offered", first));
}

/// Reverse-mode differentiation of the function built so far (Griewank & Walther 2008, section 3.2).
class Differentiation {
 public:
  /// `of`: the values whose gradients are wanted. `states`: true for training. Gradients of parameters are then added
  /// to states, and nodes have the phases of training.
  Differentiation(FunctionBuilder& builder, ValueId scalar, const std::vector<ValueId>& of, bool states)
      : builder_(builder), forward_nodes_(builder.function().nodes.size()), states_(states), layer_(builder.layer()) {
    const std::size_t values = builder.function().values.size();
    wanted_.assign(values, false);
    gradients_.assign(values, {});
    const IdVector<StateId, State>& all = builder.graph().states;
    for (const StateId id : all.ids()) {
      if (all[id].kind == StateKind::gradient) {
        gradient_states_.emplace(all[id].of_parameter, id);
      }
    }
    for (const ValueId id : of) {
      wanted_[id] = true;
    }
    mark_wanted();
    seed(scalar);
  }

  void run() {
    for (std::size_t n = forward_nodes_; n-- > 0;) {
      visit(NodeId(n));
    }
    set_phase(Phase::forward);
    builder_.set_layer(states_ ? builder_.graph().layers : layer_);
  }

  /// The gradient of a value; none if the scalar does not depend on it.
  [[nodiscard]] ValueId gradient(ValueId of) const { return gradients_[of]; }

 private:
  /// Whether the value is a parameter whose gradient is added to a state.
  [[nodiscard]] bool is_parameter(ValueId id) const {
    const StateId state = builder_.function().values[id].state;
    return states_ && state.exists() && builder_.graph().states[state].kind == StateKind::parameter;
  }

  [[nodiscard]] const std::string& name_of(ValueId id) const { return builder_.function().values[id].name; }

  void set_phase(Phase phase) {
    if (states_) {
      builder_.set_phase(phase);
    }
  }

  /// Marks the values whose gradients are computed: those that are wanted, and those computed from them.
  void mark_wanted() {
    const Function& function = builder_.function();
    for (const Node& node : function.nodes) {
      bool any = false;
      for (const ValueId id : node.inputs) {
        any = any || wanted_[id];
      }
      for (const ValueId id : node.outputs) {
        wanted_[id] = wanted_[id] || (any && !node.op->stops_gradient);
      }
    }
  }

  [[noreturn]] void refuse(const Node& node, const std::string& why) const {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("function {}, node {}: {}", builder_.function().name, node.name, why));
  }

  /// Throws Error{shape_mismatch} if a result without a derivative, such as a statistic of rows, has a gradient.
  void require_differentiated(const Node& node) const {
    for (std::size_t o = node.op->differentiated; o < node.outputs.size(); ++o) {
      if (gradients_[node.outputs[o]].exists()) {
        refuse(node, fmt::format("result {} of the op {} has no gradient", o, node.op->name));
      }
    }
  }

  void seed(ValueId scalar) {
    const Function& function = builder_.function();
    if (!builder_.type(scalar).shape.empty()) {
      const std::string type = to_string(builder_.type(scalar));
      throw states_
          ? Error(ErrorCode::internal, fmt::format("the loss of function {} is not a scalar: {}", function.name, type))
          : Error(ErrorCode::shape_mismatch, fmt::format("expected a scalar, found {}", type));
    }
    set_phase(Phase::backward_input);
    if (states_) {
      builder_.set_layer(builder_.graph().layers);
    }
    const std::string name = states_ ? "loss" : name_of(scalar);
    gradients_[scalar] =
        builder_.call("constant", {}, {{"value", 1.0}}, "gradient_of_" + name.substr(name.rfind('/') + 1));
  }

  void visit(NodeId n) {
    // A copy, because adding nodes moves the vectors that a reference would point into.
    const Node node = builder_.function().nodes[n];
    std::vector<ValueId> output_gradients;
    bool reached = false;
    for (const ValueId id : node.outputs) {
      output_gradients.push_back(gradients_[id]);
      reached = reached || output_gradients.back().exists();
    }
    if (!reached || node.op->stops_gradient) {
      return;
    }
    builder_.set_layer(states_ ? node.layer : layer_);
    // Parameters come first. The activation that a weight gradient reads is then free before the next gradient is made.
    for (const bool parameters : {true, false}) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueId input = node.inputs[i];
        if (!wanted_[input] || is_parameter(input) != parameters) {
          continue;
        }
        if (node.op->gradient == nullptr) {
          refuse(node, without_gradient(node.op->name));
        }
        require_differentiated(node);
        set_phase(parameters ? Phase::backward_weight : Phase::backward_input);
        builder_.name_unnamed("gradient/" + (parameters ? name_of(input) : node.name));
        const ValueId gradient =
            node.op->gradient(builder_, {node.attributes, node.inputs, node.outputs, output_gradients, i});
        builder_.name_unnamed({});
        if (gradient.exists()) {
          contribute(input, gradient);
        }
      }
    }
  }

  void contribute(ValueId input, ValueId gradient) {
    if (is_parameter(input)) {
      write_gradient(input, gradient);
      return;
    }
    ValueId& sum = gradients_[input];
    sum = sum.exists() ? builder_.call("add", {gradient, sum}, {}, fmt::format("gradient/{}/sum", name_of(input)))
                       : gradient;
  }

  void write_gradient(ValueId input, ValueId gradient) {
    Graph& graph = builder_.graph();
    const StateId parameter = builder_.function().values[input].state;
    const StateId accumulator = gradient_state(graph, parameter);
    bool first = true;
    for (const StateWrite& write : builder_.function().writes) {
      first = first && write.state != accumulator;
    }
    builder_.write(accumulator, gradient, first ? StateWrite::Mode::accumulate : StateWrite::Mode::add);
  }

  StateId gradient_state(Graph& graph, StateId parameter) {
    const StateId next = graph.states.next();
    const auto [known, is_new] = gradient_states_.emplace(parameter, next);
    if (!is_new) {
      return known->second;
    }
    const State& owner = graph.states[parameter];
    State state{.name = "gradients/" + owner.name,
                .type = owner.type,
                .kind = StateKind::gradient,
                .layer = owner.layer,
                .of_parameter = parameter};
    graph.add_state(std::move(state));
    return next;
  }

  FunctionBuilder& builder_;
  std::size_t forward_nodes_;
  bool states_;
  std::int32_t layer_;  ///< the builder's layer before differentiation
  IdVector<ValueId, bool> wanted_;
  IdVector<ValueId, ValueId> gradients_;
  std::unordered_map<StateId, StateId> gradient_states_;  ///< the gradient's state of each parameter that has one
};

}  // namespace

void differentiate(FunctionBuilder& builder, ValueId loss) {
  std::vector<ValueId> parameters;
  for (const ValueId id : builder.function().values.ids()) {
    const StateId state = builder.function().values[id].state;
    if (state.exists() && builder.graph().states[state].kind == StateKind::parameter) {
      parameters.push_back(id);
    }
  }
  Differentiation(builder, loss, parameters, true).run();
}

std::vector<ValueId> gradients(FunctionBuilder& builder, ValueId scalar, const std::vector<ValueId>& of) {
  Differentiation differentiation(builder, scalar, of, false);
  differentiation.run();
  std::vector<ValueId> results;
  for (const ValueId id : of) {
    ValueId gradient = differentiation.gradient(id);
    if (!gradient.exists()) {
      const ValueId zero = builder.call("constant", {}, {{"value", 0.0}});
      gradient = builder.call("broadcast_scalar", {zero, id}, {{"scale", 1.0}});
    }
    results.push_back(gradient);
  }
  return results;
}

}  // namespace shardrun::graph
