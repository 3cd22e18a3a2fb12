#include "core/models/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/graph/builder.h"
#include "core/graph/precision.h"
#include "core/graph/unused.h"

namespace shardrun::models {
namespace {

using graph::FunctionBuilder;
using graph::Graph;
using graph::State;
using graph::StateId;
using graph::StateKind;
using graph::StateWrite;
using graph::ValueId;

StateId metric(Graph& graph, const char* name) {
  if (graph.find_state(name).exists()) {
    throw Error(ErrorCode::plugin, fmt::format("model {} has a state '{}': training has one of that name, so the "
                                               "model's needs another",
                                               graph.model, name));
  }
  return graph.states.push_back({.name = name, .type = {}, .kind = StateKind::metric});
}

/// Adds a function that a model has written.
void finish(FunctionBuilder& builder) {
  Graph& graph = builder.graph();
  builder.finish();
  graph.functions.back() = graph::without_unused(graph.functions.back());
}

/// The mean loss over `samples` is summed up in state `loss` call by call.
ValueId add_loss(FunctionBuilder& builder, const Model& model, const ModelSettings& settings, std::int64_t rows,
                 std::int64_t samples, bool training) {
  const ValueId losses = model.losses(builder, settings, rows, training);
  builder.set_layer(builder.graph().layers);
  const std::int64_t of_sample = graph::element_count(builder.type(losses)) / rows;
  const double count = static_cast<double>(samples) * static_cast<double>(of_sample);
  const ValueId loss = builder.call("sum_all", {losses}, {{"scale", 1.0 / count}}, "loss");
  builder.write(builder.graph().find_state("loss"), loss, StateWrite::Mode::accumulate);
  return loss;
}

void add_microbatch(Graph& graph, const Model& model, const ModelSettings& settings, std::int64_t rows,
                    const TrainingSettings& training) {
  FunctionBuilder builder(graph, "micro", graph::Role::repeated, rows);
  graph::differentiate(builder, add_loss(builder, model, settings, rows, training.batch, true));
  finish(builder);
  graph.functions.back() = graph::rematerialize(graph.functions.back(), training.remat, graph.layers);
}

void add_evaluation(Graph& graph, const Model& model, const ModelSettings& settings, std::int64_t rows,
                    std::int64_t samples) {
  FunctionBuilder builder(graph, std::string(evaluate_function), graph::Role::on_demand, rows);
  add_loss(builder, model, settings, rows, samples, false);
  finish(builder);
}

StateId moment(Graph& graph, StateId parameter, const char* what) {
  const State& owner = graph.states[parameter];
  return graph.states.push_back({.name = fmt::format("{}/{}", what, owner.name),
                                 .type = owner.type,
                                 .kind = StateKind::optimizer,
                                 .layer = owner.layer,
                                 .of_parameter = parameter});
}

/// One optimizer step of one parameter.
void add_step(FunctionBuilder& builder, const OptimizerSettings& optimizer, StateId parameter, StateId gradient,
              ValueId scale) {
  Graph& graph = builder.graph();
  const double decay = graph.states[parameter].decay ? optimizer.weight_decay : 0;
  std::vector<StateId> states = {parameter};
  graph::Attributes attributes;
  if (optimizer.kind == OptimizerSettings::Kind::adamw) {
    states.push_back(moment(graph, parameter, "first_moment"));
    states.push_back(moment(graph, parameter, "second_moment"));
    attributes = {
        {"beta1", optimizer.beta1}, {"beta2", optimizer.beta2}, {"epsilon", optimizer.epsilon}, {"decay", decay}};
  } else {
    if (optimizer.momentum > 0) {
      states.push_back(moment(graph, parameter, "velocity"));
    }
    attributes = {{"momentum", optimizer.momentum}, {"decay", decay}};
  }
  std::vector<ValueId> operands;
  for (const StateId state : states) {
    operands.push_back(builder.state(state));
  }
  operands.push_back(builder.state(gradient));
  if (optimizer.clip > 0) {
    operands.push_back(scale);  // it depends on all gradients, so every update follows them
  }
  const char* op = optimizer.kind == OptimizerSettings::Kind::adamw ? "adamw" : "sgd";
  const std::string name = "step/" + graph.states[parameter].name;
  const std::vector<ValueId> results = builder.call_all(op, operands, attributes, name);
  for (std::size_t s = 0; s < states.size(); ++s) {
    builder.write(states[s], results[s], StateWrite::Mode::assign);
  }
}

void add_update(Graph& graph, const OptimizerSettings& optimizer) {
  FunctionBuilder builder(graph, "update", graph::Role::once, 0);
  builder.set_phase(graph::Phase::update);
  std::vector<StateId> gradients;
  std::vector<ValueId> squares;
  for (const StateId id : graph.states.ids()) {
    if (graph.states[id].kind == StateKind::gradient) {
      gradients.push_back(id);
      squares.push_back(builder.call("square_sum", {builder.state(id)}, {},
                                     "square_sum/" + graph.states[graph.states[id].of_parameter].name));
    }
  }
  if (squares.empty()) {
    throw Error(ErrorCode::job,
                fmt::format("nothing can be trained: no parameter of model {} flows into its loss", graph.model));
  }
  const ValueId norm_squared = builder.call("add_n", squares, {}, "norm_squared");
  const std::vector<ValueId> clip = builder.call_all("clip_scale", {norm_squared}, {{"limit", optimizer.clip}}, "clip");
  builder.write(graph.find_state("gradient_norm"), clip[1], StateWrite::Mode::assign);
  for (const StateId gradient : gradients) {
    builder.set_layer(graph.states[gradient].layer);
    add_step(builder, optimizer, graph.states[gradient].of_parameter, gradient, clip[0]);
  }
  builder.finish();
}

Graph declare(const Model& model, const ModelSettings& settings) {
  Graph graph;
  graph.model = model.name;
  model.declare(graph, settings);
  return graph;
}

void add_prediction(Graph& graph, const Model& model, const ModelSettings& settings) {
  FunctionBuilder builder(graph, std::string(predict_function), graph::Role::on_demand, 1);
  model.predict(builder, settings);
  finish(builder);
}

}  // namespace

std::vector<std::int64_t> microbatch_rows(std::int64_t batch, std::int64_t microbatches) {
  std::vector<std::int64_t> rows;
  for (std::int64_t m = 0; m < microbatches; ++m) {
    rows.push_back(batch / microbatches + (m < batch % microbatches ? 1 : 0));
  }
  return rows;
}

std::vector<std::int64_t> evaluation_rows(std::int64_t samples, std::int64_t rows) {
  std::vector<std::int64_t> calls;
  for (std::int64_t done = 0; done < samples; done += rows) {
    calls.push_back(std::min(rows, samples - done));
  }
  return calls;
}

Graph build_training(const Model& model, const ModelSettings& model_settings, const TrainingSettings& settings) {
  if (!model.losses) {
    refuse(model_settings, "model", "name",
           fmt::format("model {} is not trained: use [job] task = iterate", model.name));
  }
  Graph graph = declare(model, model_settings);
  metric(graph, "loss");
  metric(graph, "gradient_norm");
  const auto rows = microbatch_rows(settings.batch, settings.microbatches);
  for (const std::int64_t r : std::set<std::int64_t>(rows.begin(), rows.end())) {
    add_microbatch(graph, model, model_settings, r, settings);
  }
  add_update(graph, settings.optimizer);
  if (settings.eval_samples > 0) {
    const auto calls = evaluation_rows(settings.eval_samples, settings.eval_rows);
    for (const std::int64_t r : std::set<std::int64_t>(calls.begin(), calls.end())) {
      add_evaluation(graph, model, model_settings, r, settings.eval_samples);
    }
  }
  if (settings.predict) {
    add_prediction(graph, model, model_settings);
  }
  if (settings.mixed) {
    graph::mix_precision(graph, *settings.mixed);
  }
  return graph;
}

std::int64_t losses_per_sample(const Graph& graph) {
  const auto micro =
      std::ranges::find_if(graph.functions, [](const auto& each) { return each.role == graph::Role::repeated; });
  const StateId loss = graph.find_state("loss");
  const auto write = std::ranges::find(micro->writes, loss, &StateWrite::state);
  const graph::Node& sum = micro->nodes[micro->values[write->value].producer];
  return graph::element_count(micro->values[sum.inputs.front()].type) / micro->rows;
}

Graph build_prediction(const Model& model, const ModelSettings& model_settings) {
  if (!model.predict) {
    refuse(model_settings, "model", "name",
           fmt::format("model {} does not predict tokens, so nothing can be sampled from it", model.name));
  }
  Graph graph = declare(model, model_settings);
  add_prediction(graph, model, model_settings);
  return graph;
}

Graph build_iteration(const Model& model, const ModelSettings& model_settings) {
  if (!model.iterate) {
    refuse(model_settings, "model", "name",
           fmt::format("model {} is not iterated: use [job] task = train", model.name));
  }
  Graph graph = declare(model, model_settings);
  FunctionBuilder builder(graph, "iterate", graph::Role::once, 0);
  model.iterate(builder, model_settings);
  builder.keep_outputs();
  finish(builder);
  return graph;
}

}  // namespace shardrun::models
