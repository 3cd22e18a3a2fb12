// The functions, states and parameters of models, and what models refuse.

#include <algorithm>
#include <numeric>
#include <set>

#include "core/workload/program.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// The number of a GPT's parameters, without building any function.
std::int64_t parameters_of_gpt(std::initializer_list<job::WrittenSetting> options) {
  const workload::Model& gpt = find_model("gpt");
  return graph::parameter_count(workload::build_prediction(gpt, model_settings("gpt", options)));
}

std::string refusal(std::string_view model, std::initializer_list<job::WrittenSetting> options,
                    const workload::DataShape& data) {
  return error_of([&] {
    static_cast<void>(workload::build_training(find_model(model), model_settings(model, options, data), {}));
  });
}

std::multiset<std::string> function_names(const graph::Graph& graph) {
  std::multiset<std::string> names;
  for (const graph::Function& function : graph.functions) {
    names.insert(function.name + " " + std::to_string(function.rows));
  }
  return names;
}

}  // namespace

TEST_CASE("models have the published numbers of parameters", "[models]") {
  CHECK(parameters_of_gpt({{"layers", "12"},
                           {"heads", "12"},
                           {"width", "768"},
                           {"context", "1024"},
                           {"vocab", "50257"},
                           {"bias", "true"}}) == 124'439'808);
  CHECK(parameters_of_gpt(
            {{"layers", "12"}, {"heads", "12"}, {"width", "768"}, {"context", "1024"}, {"vocab", "50257"}}) ==
        124'337'664);
  CHECK(parameters_of_gpt({{"layers", "4"}, {"heads", "4"}, {"width", "128"}, {"context", "64"}, {"vocab", "65"}}) ==
        804'096);
  CHECK(
      parameters_of_gpt(
          {{"layers", "4"}, {"heads", "4"}, {"width", "128"}, {"context", "64"}, {"vocab", "65"}, {"tied", "false"}}) ==
      804'096 + 65 * 128);
}

TEST_CASE("microbatches are as even as possible, larger ones first", "[models]") {
  using Rows = std::vector<std::int64_t>;
  CHECK(workload::microbatch_rows(12, 1) == Rows{12});
  CHECK(workload::microbatch_rows(7, 3) == Rows{3, 2, 2});
  CHECK(workload::microbatch_rows(8, 3) == Rows{3, 3, 2});
  CHECK(workload::microbatch_rows(3, 3) == Rows{1, 1, 1});
  for (std::int64_t batch = 1; batch < 40; ++batch) {
    for (std::int64_t microbatches = 1; microbatches <= batch; ++microbatches) {
      const Rows rows = workload::microbatch_rows(batch, microbatches);
      CHECK(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}) == batch);
      CHECK(std::is_sorted(rows.rbegin(), rows.rend()));
      CHECK(rows.front() - rows.back() <= 1);
    }
  }
}

TEST_CASE("the calls of an evaluation cover its samples, the last with the rest", "[models]") {
  using Rows = std::vector<std::int64_t>;
  CHECK(workload::evaluation_rows(0, 4).empty());
  CHECK(workload::evaluation_rows(3, 4) == Rows{3});
  CHECK(workload::evaluation_rows(8, 4) == Rows{4, 4});
  CHECK(workload::evaluation_rows(9, 4) == Rows{4, 4, 1});
}

TEST_CASE("training has one function for each size of microbatch", "[models]") {
  const auto functions = [](const workload::TrainingSettings& settings) {
    return function_names(training_case("", "gpt", {{"layers", "1"}, {"heads", "1"}, {"width", "2"}, {"context", "3"}},
                                        {.vocab = 5}, settings)
                              .graph);
  };
  CHECK(functions({.batch = 6}) == std::multiset<std::string>{"micro 6", "update 0"});
  CHECK(functions({.batch = 6, .microbatches = 3}) == std::multiset<std::string>{"micro 2", "update 0"});
  CHECK(functions({.batch = 7, .microbatches = 3, .eval_rows = 4, .eval_samples = 9, .predict = true}) ==
        std::multiset<std::string>{"micro 2", "micro 3", "update 0", "evaluate 1", "evaluate 4", "predict 1"});
}

namespace {

/// A model with the parameters w and v, whose losses are w · x, sent through `op`.
workload::Model scaling(const std::string& op, graph::Attributes attributes = {}) {
  workload::Model model{.name = "scaling"};
  model.declare = [](graph::Graph& graph, const workload::ModelSettings&) {
    for (const char* name : {"w", "v"}) {
      graph.states.push_back({.name = name, .type = {}, .kind = graph::StateKind::parameter});
    }
  };
  model.losses = [=](graph::FunctionBuilder& builder, const workload::ModelSettings&, std::int64_t rows, bool) {
    const graph::ValueId x = builder.input("inputs", {graph::DType::f32, {rows}, {"batch"}});
    const graph::ValueId w = builder.call("broadcast_scalar", {builder.state("w"), x}, {{"scale", 1.0}});
    return graph::Losses{.values = builder.call(op, {w, x}, attributes, "result")};
  };
  return model;
}

}  // namespace

TEST_CASE("a parameter that the loss does not depend on is named", "[models]") {
  CHECK(workload::untrained_notice(workload::build_training(scaling("multiply"), {}, {})) ==
        "parameters without a gradient keep their first values: v");
  CHECK(workload::untrained_notice(
            training_case("", "mlp", {{"hidden", "3"}}, {.features = 5, .outputs = 2}, {}).graph) == "");
  CHECK(workload::untrained_notice(
            workload::build_iteration(find_model("heat1d"), model_settings("heat1d", {{"cells", "3"}}))) == "");
}

TEST_CASE("an op in the loss that has no gradient is named with its model and function", "[models]") {
  CHECK(error_of([] {
          static_cast<void>(workload::build_training(scaling("gelu_gradient", {{"form", "erf"}}), {}, {}));
        }) ==
        "1: model scaling: function loss, node result: the op gelu_gradient has no gradient; second derivatives of "
        "gelu are not offered");
}

TEST_CASE("dropout acts in training alone", "[models]") {
  const graph::Graph graph =
      training_case("", "gpt", {{"layers", "1"}, {"heads", "1"}, {"width", "2"}, {"context", "3"}, {"dropout", "0.5"}},
                    {.vocab = 5}, {.batch = 2, .eval_rows = 2, .eval_samples = 2, .predict = true})
          .graph;
  for (const graph::Function& function : graph.functions) {
    INFO(function.name);
    double rates = 0;
    for (const graph::Node& node : function.nodes) {
      rates += node.op->name == "dropout" ? node.attributes.real("rate") : 0;
      rates += node.op->name == "attention" ? node.attributes.real("dropout") : 0;
    }
    // Embedding, attention, and the two of the block; the three ops of their own again in backward.
    CHECK(rates == (function.name == "micro" ? 0.5 * (4 + 3) : 0));
  }
}

TEST_CASE("weight decay applies to matrices and embeddings alone", "[models]") {
  const graph::Graph graph =
      training_case("", "gpt", {{"layers", "1"}, {"heads", "1"}, {"width", "2"}, {"context", "3"}, {"bias", "true"}},
                    {.vocab = 5}, {.optimizer = {.weight_decay = 0.1}})
          .graph;
  std::size_t steps = 0;
  for (const graph::Node& node : graph.find("update", 0)->nodes) {
    if (node.op->name == "adamw") {
      const bool decays =
          node.name.ends_with("/weights") || node.name.ends_with("/tokens") || node.name.ends_with("/positions");
      INFO(node.name);
      CHECK(node.attributes.real("decay") == (decays ? 0.1 : 0.0));
      ++steps;
    }
  }
  // Two embeddings; weights and bias of four linear layers; gain and bias of three normalisations.
  CHECK(steps == 2 + 2 * 4 + 2 * 3);
}

TEST_CASE("options of a model that contradict each other are refused", "[models]") {
  CHECK(refusal("gpt", {{"layers", "1"}, {"heads", "3"}, {"width", "8"}, {"context", "3"}}, {.vocab = 5}) ==
        "2: [model] heads = 3 does not divide width = 8: each head needs the same number of columns; choose a width "
        "that is a multiple of 3");
  CHECK(refusal("gpt", {{"layers", "1"}, {"heads", "1"}, {"width", "8"}, {"context", "3"}}, {}) ==
        "2: [data] is missing: set text, tokens or arrays; [model] vocab is enough for a plan");
  CHECK(refusal("gpt", {{"layers", "1"}, {"heads", "1"}, {"width", "8"}, {"context", "3"}, {"vocab", "4"}},
                {.vocab = 5}) ==
        "2: [model] vocab = 4 is smaller than the data's 5 distinct tokens: leave it out or raise it");
  CHECK(refusal("mlp", {{"hidden", "3"}}, {}) ==
        "2: [data] is missing: set text, tokens or arrays; [model] inputs is enough for a plan");
  CHECK(refusal("mlp", {{"hidden", "3"}, {"inputs", "4"}}, {.features = 5, .outputs = 1}) ==
        "2: [model] inputs = 4, but the data has 5: leave it out or correct it");
  CHECK(refusal("mlp", {{"hidden", "3"}, {"loss", "cross_entropy"}}, {.features = 5, .outputs = 1}) ==
        "2: [model] loss = cross_entropy needs integer labels, and the second of [data] arrays holds real numbers: use "
        "loss = "
        "squared_error, or store integers");
  CHECK(refusal("mlp", {{"hidden", "3"}}, {.vocab = 4, .features = 5}) ==
        "2: [model] loss = squared_error needs real-valued targets, and the second of [data] arrays holds integer "
        "labels: use loss "
        "= cross_entropy, or store floats");
  CHECK(refusal("mlp", {{"hidden", "3"}}, {.vocab = 4}) == "2: model mlp does not take tokens");
  CHECK(refusal("gpt", {{"layers", "1"}, {"heads", "1"}, {"width", "2"}, {"context", "3"}},
                {.features = 5, .outputs = 2}) ==
        "2: model gpt does not take arrays of which the second holds real numbers");
  CHECK(refusal("heat1d", {{"cells", "3"}}, {}) == "2: model heat1d is not trained: use [job] task = iterate");
  CHECK(error_of([] {
          static_cast<void>(workload::build_iteration(find_model("heat1d"),
                                                      model_settings("heat1d", {{"cells", "3"}, {"wall", "1"}})));
        }) == "2: [model] wall has no effect with boundary = periodic: leave it out, or use boundary = fixed");
  CHECK(error_of([] {
          static_cast<void>(workload::build_iteration(find_model("mlp"), model_settings("mlp", {{"hidden", "3"}})));
        }) == "2: model mlp is not iterated: use [job] task = train");
  CHECK(error_of([] {
          static_cast<void>(workload::build_prediction(find_model("mlp"), model_settings("mlp", {{"hidden", "3"}})));
        }) == "2: model mlp does not predict tokens, so nothing can be sampled from it");
}

TEST_CASE("a model may have more classes than the labels show, but not fewer", "[models]") {
  const auto outputs = [](const char* count) {
    return refusal("mlp", {{"hidden", "3"}, {"loss", "cross_entropy"}, {"outputs", count}},
                   {.vocab = 4, .features = 5});
  };
  CHECK(outputs("6") == "nothing");
  CHECK(outputs("3") == "2: [model] outputs = 3, but the data has 4: leave it out or correct it");
}

TEST_CASE("with clipping, every parameter's update uses the one factor of all gradients", "[models]") {
  for (const double clip : {0.0, 0.5}) {
    const ModelCase model = training_case("mlp", "mlp", {{"hidden", "3"}, {"loss", "cross_entropy"}},
                                          {.vocab = 3, .features = 2}, {.batch = 2, .optimizer = {.clip = clip}});
    const auto update = std::ranges::find(model.graph.functions, "update", &graph::Function::name);
    REQUIRE(update != model.graph.functions.end());
    const auto factor =
        std::ranges::find_if(update->nodes, [](const auto& node) { return node.op->name == "clip_scale"; });
    REQUIRE(factor != update->nodes.end());
    std::size_t steps = 0;
    for (const graph::Node& node : update->nodes) {
      if (node.op->name == "adamw") {
        ++steps;
        CHECK(node.inputs.size() == (clip > 0 ? 5 : 4));
        CHECK((clip > 0 && node.inputs.back() == factor->outputs.front()) == (clip > 0));
      }
    }
    CHECK(steps == 2);
  }
}
