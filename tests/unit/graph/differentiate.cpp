// Gradients as part of a graph: where their nodes stand, and that whole models have the right ones.

#include <cmath>
#include <map>

#include "core/graph/builder.h"
#include "core/graph/rewrites.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/evaluate.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::graph;
using namespace shardrun::test;

namespace {

std::vector<const StateWrite*> writes_to(const Function& function, StateId state) {
  std::vector<const StateWrite*> found;
  for (const StateWrite& write : function.writes) {
    if (write.state == state) {
      found.push_back(&write);
    }
  }
  return found;
}

/// Loss and gradients of one microbatch by the reference device, as states.
States run_micro(const Call& call, States states) {
  static_cast<void>(interpret(call, device::Device::find("reference"), states));
  return states;
}

/// Compares the gradient of every parameter with central differences of the loss.
void check_gradients(const ModelCase& model) {
  constexpr double step = 1e-5;
  const Call call = calls_of(model, 1).front();
  REQUIRE(call.function->name == "micro");
  const States states = first_states(model.graph);
  const States after = run_micro(call, states);
  const StateId loss = model.graph.find_state("loss");
  for (const StateId s : states.ids()) {
    const State& gradient = model.graph.states[s];
    if (gradient.kind != StateKind::gradient) {
      continue;
    }
    double difference = 0;
    double norm = 0;
    for (std::size_t e = 0; e < after[s].values.size(); ++e) {
      States moved = states;
      double& element = moved[gradient.of_parameter].values[e];
      const double centre = element;
      element = centre + step;
      const double above = run_micro(call, moved)[loss].values[0];
      element = centre - step;
      const double below = run_micro(call, moved)[loss].values[0];
      const double numeric = (above - below) / (2 * step);
      difference += std::pow(after[s].values[e] - numeric, 2);
      norm += numeric * numeric;
    }
    INFO(gradient.name);
    CHECK(norm > 0);
    CHECK(std::sqrt(difference / norm) < 1e-6);
  }
}

}  // namespace

TEST_CASE("the gradients of a whole transformer are central differences", "[graph]") {
  check_gradients(training_case(
      "", "gpt",
      {{"layers", "1"}, {"heads", "2"}, {"width", "4"}, {"context", "3"}, {"bias", "true"}, {"dropout", "0.3"}},
      {.vocab = 5}, {.batch = 2}));
}

TEST_CASE("the gradients of an untied transformer are central differences", "[graph]") {
  check_gradients(training_case(
      "", "gpt",
      {{"layers", "2"}, {"heads", "2"}, {"width", "6"}, {"context", "2"}, {"tied", "false"}, {"gelu", "erf"}},
      {.vocab = 4}, {.batch = 2}));
}

TEST_CASE("the gradients of a two-layer network are central differences, with either loss", "[graph]") {
  check_gradients(training_case("", "mlp", {{"hidden", "4"}}, {.features = 3, .outputs = 2}, {.batch = 3}));
  check_gradients(training_case("", "mlp", {{"hidden", "4"}, {"loss", "cross_entropy"}}, {.vocab = 3, .features = 3},
                                {.batch = 3}));
}

TEST_CASE("every parameter has one gradient, which is a state of the same type", "[graph]") {
  for (const ModelCase& model : model_cases()) {
    IdVector<StateId, int> gradients(model.graph.states.size(), 0);
    for (const State& state : model.graph.states) {
      if (state.kind == StateKind::gradient) {
        ++gradients[state.of_parameter];
        CHECK(state.name == "gradients/" + model.graph.states[state.of_parameter].name);
        CHECK(state.type == model.graph.states[state.of_parameter].type);
        CHECK(state.layer == model.graph.states[state.of_parameter].layer);
      }
    }
    for (const StateId s : gradients.ids()) {
      INFO(model.name << ", " << model.graph.states[s].name);
      CHECK(gradients[s] == (model.graph.states[s].kind == StateKind::parameter ? 1 : 0));
    }
  }
}

TEST_CASE("the gradient of a tied weight adds up both uses", "[graph]") {
  const ModelCase model = model_cases().front();
  const Function& micro = *model.graph.find("micro", 3);
  const auto writes = writes_to(micro, model.graph.find_state("gradients/embedding/tokens"));
  REQUIRE(writes.size() == 2);
  CHECK(writes[0]->mode == StateWrite::Mode::accumulate);
  CHECK(writes[1]->mode == StateWrite::Mode::add);
  CHECK(writes_to(micro, model.graph.find_state("gradients/embedding/positions")).size() == 1);
}

TEST_CASE("gradients of activations and gradients of weights are nodes of different phases", "[graph]") {
  for (const ModelCase& model : model_cases()) {
    for (const Function& function : model.graph.functions) {
      IdVector<ValueId, bool> of_weights(function.values.size(), false);
      for (const StateWrite& write : function.writes) {
        const State& state = model.graph.states[write.state];
        if (state.kind == StateKind::gradient) {
          const NodeId producer = function.values[write.value].producer;
          INFO(model.name << ", " << state.name);
          CHECK(to_string(function.nodes[producer].phase) == std::string("backward_weight"));
          of_weights[write.value] = true;
        }
      }
      for (const Node& node : function.nodes) {
        INFO(model.name << ", " << function.name << ", " << node.name);
        CHECK((node.phase == Phase::update) == (function.name == "update"));
        CHECK((function.name == "micro" || node.phase == Phase::forward || node.phase == Phase::update));
        // Otherwise a schedule could not postpone the gradients of weights.
        for (const ValueId input : node.inputs) {
          CHECK_FALSE((node.phase == Phase::backward_input && of_weights[input]));
        }
      }
    }
  }
}

namespace {

/// s = Σ x·x·y of the state x and the input y, [x 3] each. z flows nowhere.
struct Product {
  Graph graph;
  StateId x = graph.states.push_back({.name = "x", .type = {.shape = {3}, .axes = {"x"}}, .kind = StateKind::field});
  FunctionBuilder builder{graph, "f", Role::once, 0};
  ValueId y = builder.input("y", {.shape = {3}, .axes = {"x"}});
  ValueId z = builder.input("z", {.shape = {2}, .axes = {"z"}});
  ValueId square = builder.call("multiply", {builder.state(x), builder.state(x)});
  ValueId sum = builder.call("sum_all", {builder.call("multiply", {square, y})}, {{"scale", 1.0}}, "s");
};

}  // namespace

TEST_CASE("gradients can be taken of states, values and results of ops", "[graph]") {
  Product product;
  const std::vector<ValueId> of = {product.builder.state(product.x), product.y, product.square, product.z};
  const std::size_t made = product.builder.function().nodes.size();
  product.builder.set_layer(2);
  const std::vector<ValueId> gradients = graph::gradients(product.builder, product.sum, of);
  const Function& function = product.builder.function();
  std::map<ValueId, Tensor> given;
  const auto give = [&](ValueId id, std::vector<double> values) {
    Tensor tensor = zeros(function.values[id].type);
    tensor.values = std::move(values);
    given[id] = std::move(tensor);
  };
  give(of[0], {1, 2, 3});
  give(product.y, {4, 5, 6});
  give(product.z, {7, 8});

  const auto values = evaluate(function, device::Device::find("reference"), given, {});

  CHECK(values[gradients[0]].values == std::vector<double>{8, 20, 36});  // 2xy
  CHECK(values[gradients[1]].values == std::vector<double>{1, 4, 9});    // x²
  CHECK(values[gradients[2]].values == std::vector<double>{4, 5, 6});    // y
  CHECK(values[gradients[3]].values == std::vector<double>{0, 0});
  for (const NodeId n : function.nodes.ids()) {
    CHECK(function.nodes[n].phase == Phase::forward);
    CHECK(function.nodes[n].layer == (n < NodeId(made) ? -1 : 2));
  }
  CHECK(product.graph.states.size() == 1);
}

TEST_CASE("a gradient through an op that has none is refused, not zero", "[graph]") {
  Product product;
  FunctionBuilder& builder = product.builder;
  const ValueId x = builder.state(product.x);
  const ValueId slope = builder.call("gelu_gradient", {x, x}, {{"form", "erf"}}, "slope");
  const ValueId norm = builder.call("square_sum", {slope}, {}, "norm");
  CHECK(error_of([&] { (void)graph::gradients(builder, norm, {builder.state(product.x)}); }) ==
        "1: function f, node slope: the op gelu_gradient has no gradient; second derivatives of gelu are not "
        "offered");
}

TEST_CASE("only nodes whose results are not needed are left out", "[graph]") {
  Product product;
  const ValueId x = product.builder.state(product.x);
  const ValueId gradient = graph::gradients(product.builder, product.sum, {x}).front();
  product.builder.write(product.x, gradient, StateWrite::Mode::assign);
  product.builder.finish();
  const Function& function = product.graph.functions.front();

  const Function used = without_unused(function);

  CHECK(used.inputs.size() == function.inputs.size());
  CHECK(used.nodes.size() < function.nodes.size());
  for (const Node& node : used.nodes) {
    CHECK(node.name != "s");
  }
  CHECK(used.values[used.writes.at(0).value].name == function.values[gradient].name);
}
