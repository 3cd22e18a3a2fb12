#include "core/workload/optimizer.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace shardrun::workload {
namespace {

using graph::FunctionBuilder;
using graph::Graph;
using graph::StateId;
using graph::StateKind;
using graph::StateWrite;
using graph::ValueId;

StateId moment(Graph& graph, StateId parameter, const char* what, graph::DType dtype) {
  const graph::State& owner = graph.states[parameter];
  graph::TensorType type = owner.type;
  type.dtype = dtype;
  return graph.add_state({.name = fmt::format("{}/{}", what, owner.name),
                          .type = std::move(type),
                          .kind = StateKind::optimizer,
                          .layer = owner.layer,
                          .of_parameter = parameter});
}

/// 1 divided by the count, or 0 if the count is 0.
ValueId inverse_of(FunctionBuilder& builder, ValueId count) {
  const auto call = [&](const char* op, ValueId a, ValueId b) {
    return builder.call(op, {a, b}, {}, fmt::format("inverse_count/{}", op));
  };
  const ValueId zero = call("subtract", count, count);
  const ValueId at_least_one = call("add", count, call("equal", count, zero));  // 1 in place of 0
  return call("divide", call("not_equal", count, zero), at_least_one);
}

/// Adds one optimizer step of one parameter. `scale`: the factor of the gradient; none: 1.
void add_step(FunctionBuilder& builder, const OptimizerSettings& optimizer, StateId parameter, StateId gradient,
              ValueId scale) {
  Graph& graph = builder.graph();
  const double decay = graph.states[parameter].decay ? optimizer.weight_decay : 0;
  std::vector<StateId> states = {parameter};
  graph::Attributes attributes;
  if (optimizer.kind == OptimizerSettings::Kind::adamw) {
    states.push_back(moment(graph, parameter, "first_moment", optimizer.moments));
    states.push_back(moment(graph, parameter, "second_moment", optimizer.moments));
    attributes = {
        {"beta1", optimizer.beta1}, {"beta2", optimizer.beta2}, {"epsilon", optimizer.epsilon}, {"decay", decay}};
  } else {
    if (optimizer.momentum > 0) {
      states.push_back(moment(graph, parameter, "velocity", optimizer.moments));
    }
    attributes = {{"momentum", optimizer.momentum}, {"decay", decay}};
  }
  std::vector<ValueId> operands;
  for (const StateId state : states) {
    operands.push_back(builder.state(state));
  }
  operands.push_back(builder.state(gradient));
  if (scale.exists()) {
    operands.push_back(scale);
  }
  const char* op = optimizer.kind == OptimizerSettings::Kind::adamw ? "adamw" : "sgd";
  const std::string name = "step/" + graph.states[parameter].name;
  const std::vector<ValueId> results = builder.call_all(op, operands, attributes, name);
  for (std::size_t s = 0; s < states.size(); ++s) {
    builder.write(states[s], results[s], StateWrite::Mode::assign);
  }
}

}  // namespace

std::vector<StateId> gradients_of(const Graph& graph) {
  std::vector<StateId> gradients;
  for (const StateId id : graph.states.ids()) {
    if (graph.states[id].kind == StateKind::gradient) {
      gradients.push_back(id);
    }
  }
  return gradients;
}

ValueId add_norm_squared(FunctionBuilder& builder, const std::vector<StateId>& gradients) {
  const Graph& graph = builder.graph();
  std::vector<ValueId> squares;
  for (const StateId id : gradients) {
    squares.push_back(builder.call("square_sum", {builder.state(id)}, {},
                                   "square_sum/" + graph.states[graph.states[id].of_parameter].name));
  }
  return builder.call("add_n", squares, {}, "norm_squared");
}

void add_steps(FunctionBuilder& builder, const OptimizerSettings& optimizer, const std::vector<StateId>& gradients,
               ValueId norm_squared, ValueId factor) {
  Graph& graph = builder.graph();
  const auto multiply = [&](ValueId a, ValueId b, const char* name) {
    return builder.call("multiply", {a, b}, {}, name);
  };
  if (factor.exists()) {
    norm_squared = multiply(norm_squared, multiply(factor, factor, "factor_squared"), "norm_squared_of_mean");
  }
  const std::vector<ValueId> clip = builder.call_all("clip_scale", {norm_squared}, {{"limit", optimizer.clip}}, "clip");
  builder.write(graph.find_state("gradient_norm"), clip[1], StateWrite::Mode::assign);
  // With clipping the scale depends on all gradients, so every update comes after them.
  const ValueId clipping = optimizer.clip > 0 ? clip[0] : ValueId();
  const ValueId scale = !factor.exists()     ? clipping
                        : !clipping.exists() ? factor
                                             : multiply(clipping, factor, "clipped_factor");
  for (const StateId gradient : gradients) {
    builder.set_layer(graph.states[gradient].layer);
    add_step(builder, optimizer, graph.states[gradient].of_parameter, gradient, scale);
  }
}

void add_update(Graph& graph, const OptimizerSettings& optimizer) {
  FunctionBuilder builder(graph, "update", graph::Role::once, 0);
  builder.set_phase(graph::Phase::update);
  const std::vector<StateId> gradients = gradients_of(graph);
  const ValueId norm_squared = add_norm_squared(builder, gradients);
  const StateId count = loss_count_of(graph);
  add_steps(builder, optimizer, gradients, norm_squared,
            count.exists() ? inverse_of(builder, builder.state(count)) : ValueId());
  builder.finish();
}

}  // namespace shardrun::workload
