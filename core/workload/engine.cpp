#include "core/workload/engine.h"

#include <fmt/format.h>

#include <set>
#include <string>

#include "core/graph/builder.h"
#include "core/workload/optimizer.h"

namespace shardrun::workload {
namespace {

using graph::FunctionBuilder;
using graph::Graph;
using graph::StateId;
using graph::StateKind;
using graph::StateWrite;
using graph::ValueId;

/// Adds the losses of the rows, one each, up to a constant factor.
ValueId add_row_losses(FunctionBuilder& builder, const EngineProgram& engine, std::int64_t rows, ValueId predictions) {
  if (!engine.labels) {
    const ValueId targets =
        builder.input(targets_input, {graph::DType::f32, {rows, engine.outputs}, {"batch", "outputs"}});
    return builder.call("squared_error", {predictions, targets}, {}, "losses");
  }
  const ValueId targets = builder.input(targets_input, {graph::DType::i32, {rows}, {"batch"}});
  const ValueId highest = builder.call("row_max", {predictions}, {}, "highest_logit");
  const std::vector<ValueId> terms =
      builder.call_all("softmax_terms", {predictions, highest, targets}, {}, "softmax_terms");
  return builder.call("token_loss", {highest, terms[0], terms[1]}, {}, "losses");
}

ValueId add_engine_loss(FunctionBuilder& builder, const EngineProgram& engine, std::int64_t rows, std::int64_t samples,
                        ValueId predictions) {
  const ValueId losses = add_row_losses(builder, engine, rows, predictions);
  const double scale = engine.loss_scale / static_cast<double>(samples);
  const ValueId loss = builder.call("sum_all", {losses}, {{"scale", scale}}, "loss");
  builder.write(builder.graph().find_state("loss"), loss, StateWrite::Mode::accumulate);
  return loss;
}

ValueId add_predictions(FunctionBuilder& builder, const EngineProgram& engine, std::int64_t rows) {
  return builder.input(predictions_input, {graph::DType::f32, {rows, engine.outputs}, {"batch", "outputs"}});
}

void add_loss_and_gradient(Graph& graph, const EngineProgram& engine, std::int64_t rows) {
  FunctionBuilder builder(graph, "micro", graph::Role::repeated, rows);
  const ValueId predictions = add_predictions(builder, engine, rows);
  const ValueId loss = add_engine_loss(builder, engine, rows, engine.batch, predictions);
  builder.set_phase(graph::Phase::backward_input);
  builder.output(gradient_output, graph::gradients(builder, loss, {predictions}).front());
  builder.finish();
}

void add_loss_alone(Graph& graph, const EngineProgram& engine, std::int64_t rows) {
  FunctionBuilder builder(graph, std::string(evaluate_function), graph::Role::on_demand, rows);
  const ValueId predictions = add_predictions(builder, engine, rows);
  static_cast<void>(add_engine_loss(builder, engine, rows, engine.eval_samples, predictions));
  builder.finish();
}

void add_norm(Graph& graph, const std::vector<StateId>& counted) {
  if (counted.empty()) {
    return;
  }
  FunctionBuilder builder(graph, std::string(norm_function), graph::Role::on_demand, 0);
  builder.set_phase(graph::Phase::update);
  builder.write(graph.find_state("norm_squared"), add_norm_squared(builder, counted), StateWrite::Mode::assign);
  builder.finish();
}

void add_engine_update(Graph& graph, const OptimizerSettings& optimizer) {
  FunctionBuilder builder(graph, "update", graph::Role::once, 0);
  builder.set_phase(graph::Phase::update);
  add_steps(builder, optimizer, gradients_of(graph), builder.state("norm_squared"));
  builder.finish();
}

}  // namespace

Graph build_parameters(const EngineProgram& engine) {
  Graph graph;
  graph.model = engine.name;
  for (const EngineProgram::Parameter& parameter : engine.parameters) {
    graph.states.push_back(parameter.state);
  }
  return graph;
}

Graph build_engine(const EngineProgram& engine) {
  Graph graph;
  graph.model = engine.name;
  std::vector<StateId> counted;
  for (const EngineProgram::Parameter& parameter : engine.parameters) {
    const StateId id = graph.add_state(parameter.state);
    const StateId gradient = graph.add_state({.name = fmt::format("gradients/{}", parameter.state.name),
                                              .type = parameter.state.type,
                                              .kind = StateKind::gradient,
                                              .of_parameter = id});
    if (parameter.counts) {
      counted.push_back(gradient);
    }
  }
  for (const char* const metric : {"loss", "gradient_norm", "norm_squared"}) {
    graph.add_state({.name = metric, .type = {}, .kind = StateKind::metric});
  }
  for (const std::int64_t rows : std::set(engine.microbatch_rows.begin(), engine.microbatch_rows.end())) {
    add_loss_and_gradient(graph, engine, rows);
  }
  add_norm(graph, counted);
  add_engine_update(graph, engine.optimizer);
  for (const std::int64_t rows : std::set(engine.evaluation_rows.begin(), engine.evaluation_rows.end())) {
    add_loss_alone(graph, engine, rows);
  }
  return graph;
}

}  // namespace shardrun::workload
