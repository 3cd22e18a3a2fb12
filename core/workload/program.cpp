#include "core/workload/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/graph/builder.h"
#include "core/graph/rewrites.h"
#include "core/graph/stored_weights.h"
#include "core/workload/optimizer.h"

namespace shardrun::workload {
namespace {

using graph::FunctionBuilder;
using graph::Graph;
using graph::State;
using graph::StateId;
using graph::StateKind;
using graph::StateWrite;
using graph::ValueId;

StateId metric(Graph& graph, const char* name) {
  return graph.add_state({.name = name, .type = {}, .kind = StateKind::metric});
}

/// The function's name in the model, which messages use until the function is finished.
constexpr const char* name_in_model = "loss";

/// Adds to the graph a function that a model has written, without the nodes that nothing needs.
void finish(FunctionBuilder& builder) {
  Graph& graph = builder.graph();
  builder.finish();
  graph.functions.back() = graph::without_unused(graph.functions.back());
}

void add_gradients(FunctionBuilder& builder, ValueId loss) {
  try {
    graph::differentiate(builder, loss);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("model {}: {}", builder.graph().model, error.message()));
  }
}

/// The state that sums counts. The first function with counts adds it. Throws Error{plugin} unless all functions have
/// counts, or none has.
StateId count_state(Graph& graph, bool has_counts) {
  const StateId known = loss_count_of(graph);
  const bool is_first = graph.functions.empty();
  if (has_counts && is_first) {
    return metric(graph, loss_count_state.data());
  }
  if (has_counts != known.exists() && !is_first) {
    throw Error(
        ErrorCode::plugin,
        fmt::format("model {}: its loss has counts for some numbers of rows and for others none: set them always",
                    graph.model));
  }
  return has_counts ? known : StateId();
}

/// Lets each call add to the state `loss`. After all calls, it is the mean loss over `samples`. For a loss with counts
/// it is the sum of the losses, and another state is the sum of the counts.
ValueId add_loss(FunctionBuilder& builder, const Model& model, const ModelSettings& settings, std::int64_t rows,
                 std::int64_t samples, bool training) {
  const auto [losses, counts] = model.losses(builder, settings, rows, training);
  builder.set_layer(builder.graph().layers);
  const std::int64_t of_sample = graph::element_count(builder.type(losses)) / rows;
  const StateId count_of_all = count_state(builder.graph(), counts.exists());
  if (count_of_all.exists()) {
    const ValueId sum = builder.call("sum_all", {counts}, {{"scale", 1.0}}, "loss_count");
    builder.write(count_of_all, sum, StateWrite::Mode::accumulate);
  }
  const double count = counts.exists() ? 1 : static_cast<double>(samples) * static_cast<double>(of_sample);
  const ValueId loss = builder.call("sum_all", {losses}, {{"scale", 1.0 / count}}, "loss");
  builder.write(builder.graph().find_state("loss"), loss, StateWrite::Mode::accumulate);
  return loss;
}

void add_microbatch(Graph& graph, const Model& model, const ModelSettings& settings, std::int64_t rows,
                    const TrainingSettings& training) {
  FunctionBuilder builder(graph, name_in_model, graph::Role::repeated, rows);
  add_gradients(builder, add_loss(builder, model, settings, rows, training.batch, true));
  finish(builder);
  graph.functions.back().name = "micro";
  graph.functions.back() = graph::rematerialize(graph.functions.back(), training.remat, graph.layers);
}

void add_evaluation(Graph& graph, const Model& model, const ModelSettings& settings, std::int64_t rows,
                    std::int64_t samples) {
  FunctionBuilder builder(graph, name_in_model, graph::Role::on_demand, rows);
  add_loss(builder, model, settings, rows, samples, false);
  finish(builder);
  graph.functions.back().name = evaluate_function;
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
  if (std::ranges::find(graph.states, StateKind::gradient, &State::kind) == graph.states.end()) {
    throw Error(ErrorCode::job,
                fmt::format("nothing can be trained: no parameter of model {} flows into its loss", graph.model));
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

StateId loss_count_of(const Graph& graph) {
  const StateId found = graph.find_state(loss_count_state);
  return found.exists() && graph.states[found].kind == StateKind::metric ? found : StateId();
}

std::string untrained_notice(const Graph& graph) {
  std::set<StateId> trained;
  for (const State& state : graph.states) {
    if (state.kind == StateKind::gradient) {
      trained.insert(state.of_parameter);
    }
  }
  std::vector<std::string> untrained;
  for (const StateId id : graph.states.ids()) {
    if (!trained.empty() && graph.states[id].kind == StateKind::parameter && !trained.contains(id)) {
      untrained.push_back(graph.states[id].name);
    }
  }
  return untrained.empty()
             ? ""
             : fmt::format("parameters without a gradient keep their first values: {}", fmt::join(untrained, ", "));
}

Graph build_prediction(const Model& model, const ModelSettings& model_settings, graph::DType weights,
                       graph::DType activations) {
  if (!model.predict) {
    refuse(model_settings, "model", "name",
           fmt::format("model {} does not predict tokens, so nothing can be sampled from it", model.name));
  }
  Graph graph = declare(model, model_settings);
  add_prediction(graph, model, model_settings);
  graph::store_weights(graph, weights, activations);
  return graph;
}

namespace {

/// Makes all products add in a fixed order.
void fix_order(Graph& graph) {
  for (graph::Function& function : graph.functions) {
    for (graph::Node& node : function.nodes) {
      if (std::ranges::find(node.op->attributes, graph::fixed_order, &graph::AttributeSpec::name) !=
              node.op->attributes.end() &&
          !graph::has_fixed_order(node.attributes)) {
        node.attributes.add(std::string(graph::fixed_order), std::int64_t{1});
      }
    }
  }
}

}  // namespace

namespace {

/// A graph with the model's states, for functions that are made of its `decode`. Throws Refusal if the model has none.
Graph declare_decoding(const Model& model, const ModelSettings& model_settings, graph::DType cache) {
  if (!model.decode) {
    refuse(model_settings, "model", "name",
           fmt::format("model {} has no function decode, by which tokens are added to sequences in caches "
                       "(shardrun/model.h, since 1.9): its author has to add it",
                       model.name));
  }
  Graph graph = declare(model, model_settings);
  for (State& state : graph.states) {
    state.type.dtype = state.kind == StateKind::cache ? cache : state.type.dtype;
  }
  return graph;
}

}  // namespace

Graph build_decoding(const Model& model, const ModelSettings& model_settings, const DecodingSettings& settings) {
  Graph graph = declare_decoding(model, model_settings, settings.cache);
  const auto add = [&](std::string_view name, std::int64_t rows, std::int64_t length) {
    FunctionBuilder builder(graph, std::string(name), graph::Role::on_demand, rows);
    if (name == score_function) {
      builder.take_all_positions();
    }
    model.decode(builder, model_settings, rows, length);
    finish(builder);
  };
  add(prefill_function, 1, settings.chunk);
  if (settings.scores_prompts) {
    add(score_function, 1, settings.chunk);
  }
  add(decode_function, settings.rows(), 1);
  graph::store_weights(graph, settings.weights, settings.activations);
  if (settings.fixed_order) {
    fix_order(graph);
  }
  return graph;
}

Graph build_kept_decoding(const Model& model, const ModelSettings& model_settings, const DecodingSettings& settings,
                          const std::vector<WholeSequence>& sequences) {
  Graph graph = declare_decoding(model, model_settings, settings.cache);
  for (const WholeSequence& sequence : sequences) {
    FunctionBuilder builder(graph, sequence.name, graph::Role::on_demand, 1);
    builder.take_positions("kept", sequence.rows);
    model.decode(builder, model_settings, 1, sequence.tokens);
    const ValueId logits = builder.function().outputs.front().value;
    builder.write(graph.add_state({.name = sequence.name, .type = builder.type(logits), .kind = StateKind::output}),
                  logits, StateWrite::Mode::assign);
    finish(builder);
  }
  graph::store_weights(graph, settings.weights, settings.activations);
  return graph;
}

namespace {

void require_forward(const Model& model, const ModelSettings& model_settings) {
  if (!model.forward) {
    refuse(
        model_settings, "model", "name",
        fmt::format("model {} has no function forward, by which a model is applied to arrays (shardrun/model.h, since "
                    "1.9): its author has to add it{}",
                    model.name,
                    model.predict ? "; its function predict serves 'shardrun generate', a token at a time" : ""));
  }
}

}  // namespace

void add_forward(Graph& graph, const Model& model, const ModelSettings& model_settings,
                 const std::vector<std::int64_t>& calls) {
  require_forward(model, model_settings);
  for (const std::int64_t rows : std::set<std::int64_t>(calls.begin(), calls.end())) {
    FunctionBuilder builder(graph, std::string(forward_function), graph::Role::on_demand, rows);
    model.forward(builder, model_settings, rows);
    finish(builder);
  }
}

Graph build_inference(const Model& model, const ModelSettings& model_settings, const std::vector<std::int64_t>& calls) {
  require_forward(model, model_settings);  // so that nothing else is refused first
  Graph graph = declare(model, model_settings);
  add_forward(graph, model, model_settings, calls);
  return graph;
}

Graph build_kept_inference(const Model& model, const ModelSettings& model_settings,
                           const std::vector<std::int64_t>& calls) {
  require_forward(model, model_settings);
  Graph graph = declare(model, model_settings);
  for (const std::int64_t rows : std::set<std::int64_t>(calls.begin(), calls.end())) {
    FunctionBuilder builder(graph, std::string(forward_function), graph::Role::on_demand, rows);
    model.forward(builder, model_settings, rows);
    builder.keep_outputs(kept_suffix(rows, calls.front()));
    finish(builder);
  }
  return graph;
}

std::string kept_suffix(std::int64_t rows, std::int64_t first_rows) {
  return rows == first_rows ? "" : fmt::format(" of {}", counted(rows, "sample"));
}

Graph build_iteration(const Model& model, const ModelSettings& model_settings, std::int64_t rows) {
  if (!model.iterate) {
    refuse(model_settings, "model", "name",
           fmt::format("model {} is not iterated: use [job] task = train", model.name));
  }
  Graph graph = declare(model, model_settings);
  FunctionBuilder builder(graph, "iterate", graph::Role::once, 0);
  model.iterate(builder, model_settings, rows);
  builder.keep_outputs();
  finish(builder);
  return graph;
}

}  // namespace shardrun::workload
