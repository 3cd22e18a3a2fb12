#include "tests/support/model_cases.h"

#include <algorithm>

#include "core/compile/model.h"
#include "core/device/elements.h"
#include "core/graph/builder.h"
#include "tests/support/evaluate.h"

namespace shardrun::test {
namespace {

using workload::OptimizerSettings;

constexpr std::uint64_t seed = 11;

Call make_call(const ModelCase& model, const graph::Function& function, const device::Scalars& scalars,
               Random& random) {
  Call call{.function = &function, .scalars = scalars, .inputs = {}};
  for (const graph::Port& port : function.inputs) {
    Tensor& tensor = call.inputs.emplace_back(zeros(function.values[port.value].type));
    if (tensor.type.dtype == graph::DType::i32) {
      random.fill_integers(tensor, model.vocabulary);
    } else {
      random.fill_normal(tensor, 0, 1);
    }
  }
  return call;
}

/// Writes or adds a value to a state, as `write` says. Adds in the arithmetic of the value's op, if that op can add.
void apply(const graph::StateWrite& write, const Call& call, const device::Device& device,
           const IdVector<graph::ValueId, Tensor>& values, States& states) {
  Tensor& state = states[write.state];
  const Tensor& value = values[write.value];
  const bool adds = write.mode == graph::StateWrite::Mode::add ||
                    (write.mode == graph::StateWrite::Mode::accumulate && !call.scalars.first_microbatch);
  if (!adds) {
    state.values = value.values;
    return;
  }
  const graph::NodeId producer = call.function->values[write.value].producer;
  const graph::Node* node = producer.exists() ? &call.function->nodes[producer] : nullptr;
  if (node != nullptr && node->op->accumulates && node->outputs[0] == write.value) {
    std::vector<Tensor> inputs;
    for (const graph::ValueId id : node->inputs) {
      inputs.push_back(values[id]);
    }
    state.values = execute(device, {.op = node->op->name,
                                    .attributes = node->attributes,
                                    .inputs = inputs,
                                    .outputs = {state},
                                    .scalars = call.scalars,
                                    .accumulate = true})[0]
                       .values;
    return;
  }
  for (std::size_t i = 0; i < state.values.size(); ++i) {
    state.values[i] += value.values[i];
  }
  if (device.stored(graph::DType::f32) == graph::DType::f32) {
    round_to_float(state);
  }
}

}  // namespace

const workload::Models& built_models() {
  static const workload::Models models = compile::models_in({SHARDRUN_MODELS});
  return models;
}

const workload::Model& find_model(std::string_view name) {
  static std::map<std::string, workload::Model, std::less<>> found;
  const auto known = found.find(name);
  return known != found.end() ? known->second
                              : found.emplace(name, built_models().find(std::string(name)).value()).first->second;
}

workload::ModelSettings model_settings(std::string_view model, std::initializer_list<job::WrittenSetting> options,
                                       const workload::DataShape& data) {
  return {.options = job::make_options(find_model(model).options, options), .data = data};
}

ModelCase training_case(std::string name, std::string_view model, std::initializer_list<job::WrittenSetting> options,
                        const workload::DataShape& data, const workload::TrainingSettings& training, bool is_applied) {
  ModelCase made = {
      .name = std::move(name),
      .graph = workload::build_training(find_model(model), model_settings(model, options, data), training),
      .microbatch_rows = workload::microbatch_rows(training.batch, training.microbatches),
      .evaluation_rows = workload::evaluation_rows(training.eval_samples, training.eval_rows),
      .vocabulary = static_cast<std::int32_t>(std::max<std::int64_t>(1, data.vocab))};
  if (is_applied) {
    workload::add_forward(made.graph, find_model(model), model_settings(model, options, data), made.evaluation_rows);
  }
  return made;
}

std::vector<ModelCase> training_cases(graph::Remat remat) {
  const OptimizerSettings sgd{.kind = OptimizerSettings::Kind::sgd};
  const OptimizerSettings momentum{.kind = OptimizerSettings::Kind::sgd, .momentum = 0.9, .weight_decay = 0.1};
  const OptimizerSettings clipped{.weight_decay = 0.1, .clip = 0.5};
  const workload::DataShape tokens{.vocab = 13};
  std::vector<ModelCase> cases;
  cases.push_back(training_case("gpt tied", "gpt", {{"layers", "2"}, {"heads", "3"}, {"width", "12"}, {"context", "7"}},
                                tokens, {.batch = 3, .remat = remat, .optimizer = clipped}));
  cases.push_back(training_case("gpt with all", "gpt",
                                {{"layers", "2"},
                                 {"heads", "2"},
                                 {"width", "16"},
                                 {"context", "9"},
                                 {"bias", "true"},
                                 {"tied", "false"},
                                 {"gelu", "erf"},
                                 {"dropout", "0.2"}},
                                tokens,
                                {.batch = 7,
                                 .microbatches = 3,
                                 .eval_rows = 2,
                                 .eval_samples = 5,
                                 .predict = true,
                                 .remat = remat,
                                 .optimizer = clipped},
                                true));
  cases.push_back(training_case(
      "gpt tied with dropout", "gpt",
      {{"layers", "1"}, {"heads", "2"}, {"width", "8"}, {"context", "33"}, {"bias", "true"}, {"dropout", "0.1"}},
      tokens, {.batch = 4, .microbatches = 2, .remat = remat, .optimizer = momentum}));
  cases.push_back(training_case(
      "mlp", "mlp", {{"hidden", "9"}}, {.features = 5, .outputs = 3},
      {.batch = 6, .microbatches = 4, .eval_rows = 4, .eval_samples = 4, .remat = remat, .optimizer = sgd}, true));
  cases.push_back(training_case("mlp of labels", "mlp", {{"hidden", "70"}, {"loss", "cross_entropy"}},
                                {.vocab = 4, .features = 17}, {.batch = 5, .remat = remat, .optimizer = clipped}));
  return cases;
}

namespace {

/// A case whose elements move between shapes. `grid` and `cells` are split differently: of four ranks with one row of
/// `cells` each, two read one row of `grid`, and two read two rows (pages). With `joins`, rows of `cells` move, too.
ModelCase moving_case(bool joins) {
  ModelCase model{.name = joins ? "moving and joining" : "moving"};
  const auto add = [&](const char* name, std::vector<std::int64_t> shape, std::vector<std::string> axes) {
    return model.graph.states.push_back({.name = name,
                                         .type = {graph::DType::f32, std::move(shape), std::move(axes)},
                                         .kind = graph::StateKind::field});
  };
  const graph::StateId grid = add("grid", {3, 4000}, {"row", "column"});
  const graph::StateId cells = add("cells", {4, 3000}, {"x", "y"});
  graph::FunctionBuilder f(model.graph, "iterate", graph::Role::once, 0);
  const auto reshape = [&](graph::ValueId value, std::vector<std::int64_t> shape, const char* axes, const char* name) {
    return f.call("reshape", {value}, {{"shape", std::move(shape)}, {"axes", std::string(axes)}}, name);
  };
  const graph::ValueId moved = reshape(f.state("grid"), {4, 3000}, "x y", "moved");
  const graph::ValueId sum = f.call("add", {moved, f.state("cells")}, {}, "sum");
  f.write(cells, sum, graph::StateWrite::Mode::assign);
  if (joins) {
    const graph::ValueId twice = f.call("concatenate", {sum, moved}, {{"dim", std::int64_t{0}}}, "twice");
    const graph::Attributes middle = {{"dim", std::int64_t{0}}, {"begin", std::int64_t{3}}, {"end", std::int64_t{7}}};
    const graph::ValueId part = f.call("slice", {twice}, middle, "part");
    f.write(grid, reshape(part, {3, 4000}, "row column", "back"), graph::StateWrite::Mode::assign);
  }
  f.finish();
  return model;
}

std::vector<ModelCase> build_model_cases() {
  std::vector<ModelCase> cases = training_cases(graph::Remat::none);
  for (const graph::Remat remat : {graph::Remat::layer, graph::Remat::selective}) {
    for (ModelCase& model : training_cases(remat)) {
      if (model.name == "gpt with all") {
        model.name += remat == graph::Remat::layer ? ", layers computed again" : ", what is cheap computed again";
        cases.push_back(std::move(model));
      }
    }
  }
  for (const char* boundary : {"periodic", "fixed"}) {
    cases.push_back({.name = std::string("heat1d ") + boundary,
                     .graph = workload::build_iteration(
                         find_model("heat1d"), model_settings("heat1d", {{"cells", "37"}, {"boundary", boundary}}))});
    cases.push_back({.name = std::string("heat2d ") + boundary,
                     .graph = workload::build_iteration(
                         find_model("heat2d"),
                         model_settings("heat2d", {{"rows", "7"}, {"columns", "5"}, {"boundary", boundary}}))});
  }
  cases.push_back(
      {.name = "sin", .graph = workload::build_iteration(find_model("sin"), model_settings("sin", {{"cells", "37"}}))});
  cases.push_back(moving_case(false));
  cases.push_back(moving_case(true));
  cases.push_back(moving_case(false));
  cases.push_back(moving_case(true));
  return cases;
}

}  // namespace

const std::vector<ModelCase>& model_cases() {
  static const std::vector<ModelCase> cases = build_model_cases();
  return cases;
}

std::vector<Call> calls_of(const ModelCase& model, std::int64_t steps) {
  Random random(5);
  std::vector<Call> calls;
  const auto add = [&](std::string_view function, std::int64_t rows, const device::Scalars& scalars) {
    if (const graph::Function* found = model.graph.find(function, rows)) {
      calls.push_back(make_call(model, *found, scalars, random));
    }
  };
  for (std::int64_t step = 0; step < steps; ++step) {
    device::Scalars scalars{.seed = seed, .step = step, .learning_rate = 0.1, .position = 2};
    scalars.first_sample = 100 * step;
    for (const std::int64_t rows : model.microbatch_rows) {
      add("micro", rows, scalars);
      scalars.first_sample += rows;
      scalars.first_microbatch = false;
    }
    add("update", 0, scalars);
    scalars.first_microbatch = true;
    for (const std::int64_t rows : model.evaluation_rows) {
      add("evaluate", rows, scalars);
      scalars.first_microbatch = false;
    }
    add("predict", 1, scalars);
    if (step == 0 && !model.evaluation_rows.empty()) {
      add("forward", model.evaluation_rows.front(), scalars);
      add("forward", model.evaluation_rows.back(), scalars);
    }
    add("iterate", 0, scalars);
  }
  return calls;
}

States first_states(const graph::Graph& graph) {
  Random random(3);
  States states;
  for (const graph::State& state : graph.states) {
    Tensor& tensor = states[states.push_back(zeros(state.type))];
    if (state.kind == graph::StateKind::parameter || state.kind == graph::StateKind::field) {
      random.fill_normal(tensor, state.initializer.value == 1 ? 1 : 0, 0.3);
    }
  }
  return states;
}

std::vector<Tensor> interpret(const Call& call, const device::Device& device, States& states) {
  const graph::Function& function = *call.function;
  std::map<graph::ValueId, Tensor> given;
  for (std::size_t i = 0; i < function.inputs.size(); ++i) {
    given[function.inputs[i].value] = call.inputs[i];
  }
  for (const graph::ValueId id : function.values.ids()) {
    if (function.values[id].state.exists()) {
      given[id] = states[function.values[id].state];
    }
  }
  const IdVector<graph::ValueId, Tensor> values = evaluate(function, device, given, call.scalars);
  for (const graph::StateWrite& write : function.writes) {
    apply(write, call, device, values, states);
  }
  std::vector<Tensor> outputs;
  for (const graph::Port& port : function.outputs) {
    outputs.push_back(values[port.value]);
  }
  return outputs;
}

void write_view(const Tensor& tensor, const device::TensorView& view) {
  device::write_elements(view.dtype, tensor.values, {static_cast<std::byte*>(view.data), view.bytes()});
}

Tensor read_view(const graph::TensorType& type, const device::TensorView& view) {
  Tensor tensor = zeros(type);
  device::read_elements(view.dtype, {static_cast<const std::byte*>(view.data), view.bytes()}, tensor.values);
  return tensor;
}

}  // namespace shardrun::test
