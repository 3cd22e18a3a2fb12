#include <fmt/format.h>

#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/graph/builder.h"

namespace shardrun::graph {
namespace {

/// Reverse-mode differentiation of the function built so far (Griewank & Walther 2008, section 3.2).
class Differentiation {
 public:
  Differentiation(FunctionBuilder& builder, ValueId loss)
      : builder_(builder), forward_nodes_(builder.function().nodes.size()) {
    const std::size_t values = builder.function().values.size();
    wanted_.assign(values, false);
    gradients_.assign(values, {});
    const IdVector<StateId, State>& states = builder.graph().states;
    for (const StateId id : states.ids()) {
      if (states[id].kind == StateKind::gradient) {
        gradient_states_.emplace(states[id].of_parameter, id);
      }
    }
    mark_wanted();
    seed(loss);
  }

  void run() {
    for (std::size_t n = forward_nodes_; n-- > 0;) {
      visit(NodeId(n));
    }
    builder_.set_phase(Phase::forward);
    builder_.set_layer(builder_.graph().layers);
  }

 private:
  [[nodiscard]] bool is_parameter(ValueId id) const {
    const StateId state = builder_.function().values[id].state;
    return state.exists() && builder_.graph().states[state].kind == StateKind::parameter;
  }

  [[nodiscard]] const std::string& name_of(ValueId id) const { return builder_.function().values[id].name; }

  /// A value's gradient is wanted when a parameter flows into it.
  void mark_wanted() {
    const Function& function = builder_.function();
    for (const ValueId id : function.values.ids()) {
      wanted_[id] = is_parameter(id);
    }
    for (const Node& node : function.nodes) {
      bool any = false;
      for (const ValueId id : node.inputs) {
        any = any || wanted_[id];
      }
      for (const ValueId id : node.outputs) {
        wanted_[id] = any && node.op->gradient != nullptr;
      }
    }
  }

  void seed(ValueId loss) {
    if (!builder_.type(loss).shape.empty()) {
      throw Error(ErrorCode::internal, fmt::format("the loss of function {} is not a scalar: {}",
                                                   builder_.function().name, to_string(builder_.type(loss))));
    }
    builder_.set_phase(Phase::backward_input);
    builder_.set_layer(builder_.graph().layers);
    gradients_[loss] = builder_.call("constant", {}, {{"value", 1.0}}, "gradient_of_loss");
  }

  void visit(NodeId n) {
    // Copies: building nodes moves the vectors that a reference would point into.
    const Node node = builder_.function().nodes[n];
    std::vector<ValueId> output_gradients;
    bool reached = false;
    for (const ValueId id : node.outputs) {
      output_gradients.push_back(gradients_[id]);
      reached = reached || output_gradients.back().exists();
    }
    if (!reached || node.op->gradient == nullptr) {
      return;
    }
    builder_.set_layer(node.layer);
    // Parameters first: the activation that a weight gradient needs is then free before the next one is made.
    for (const bool parameters : {true, false}) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueId input = node.inputs[i];
        if (!wanted_[input] || is_parameter(input) != parameters) {
          continue;
        }
        builder_.set_phase(parameters ? Phase::backward_weight : Phase::backward_input);
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
    sum = sum.exists() ? builder_.call("add", {sum, gradient}, {}, fmt::format("gradient/{}/sum", name_of(input)))
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
    graph.states.push_back(std::move(state));
    return next;
  }

  FunctionBuilder& builder_;
  std::size_t forward_nodes_;
  IdVector<ValueId, bool> wanted_;
  IdVector<ValueId, ValueId> gradients_;
  std::unordered_map<StateId, StateId> gradient_states_;  ///< of each parameter that has one
};

}  // namespace

void differentiate(FunctionBuilder& builder, ValueId loss) { Differentiation(builder, loss).run(); }

}  // namespace shardrun::graph
