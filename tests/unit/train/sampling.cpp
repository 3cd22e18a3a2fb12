#include "core/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::test;
using train::draw_token;

namespace {

const std::vector<float> logits = {0.0F, std::log(3.0F), -1e30F, std::log(4.0F), 0.0F};

/// How often each token is drawn, of a thousand draws spread evenly over [0, 1).
std::map<std::int32_t, int> counts(const infer::Sampling& settings) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < 1000; ++i) {
    ++counts[draw_token(logits, settings, (i + 0.5) / 1000)];
  }
  return counts;
}

/// A small transformer with weights of its own, ready to predict.
struct Predictor {
  graph::Graph graph = workload::build_prediction(
      find_model("gpt"),
      model_settings("gpt", {{"layers", "1"}, {"heads", "2"}, {"width", "8"}, {"context", "5"}, {"vocab", "11"}}));
  runtime::Executor executor{partition::programs_of(graph, device::Device::find("cpu"), 1),
                             device::Device::find("cpu")};

  Predictor() {
    const States states = first_states(graph);
    for (const graph::StateId s : states.ids()) {
      write_view(states[s], executor.state(s));
    }
  }

  std::vector<std::int32_t> sample(std::vector<std::int32_t> tokens, const infer::Sampling& settings) {
    std::vector<std::int32_t> drawn;
    train::sample(executor, std::move(tokens), settings, [&](std::int32_t token) { drawn.push_back(token); });
    return drawn;
  }
};

}  // namespace

TEST_CASE("temperature 0 draws the likeliest token, and the first of equals", "[train]") {
  CHECK(counts({.temperature = 0}) == std::map<std::int32_t, int>{{3, 1000}});
  CHECK(draw_token(std::vector<float>{1, 2, 2, 0}, {.temperature = 0}, 0.9) == 1);
}

TEST_CASE("tokens are drawn with the softmax's probabilities", "[train]") {
  CHECK(counts({.temperature = 1}) == std::map<std::int32_t, int>{{0, 111}, {1, 334}, {3, 444}, {4, 111}});
}

TEST_CASE("temperature sharpens and flattens", "[train]") {
  // exp(logit / 0.5) is the square: 1, 9, 0, 16, 1.
  CHECK(counts({.temperature = 0.5})[3] == Approx(1000 * 16.0 / 27).margin(1));
  CHECK(counts({.temperature = 2})[3] == Approx(1000 * 2 / (2 + std::sqrt(3.0) + 2)).margin(1));
}

TEST_CASE("top k draws only from the k likeliest tokens", "[train]") {
  CHECK(counts({.temperature = 1, .top_k = 1}) == std::map<std::int32_t, int>{{3, 1000}});
  CHECK(counts({.temperature = 1, .top_k = 2}) == std::map<std::int32_t, int>{{1, 429}, {3, 571}});
  CHECK(counts({.temperature = 1, .top_k = 99}) == counts({.temperature = 1}));
}

TEST_CASE("a seed gives the same samples again, and another seed gives others", "[train]") {
  Predictor predictor;
  const std::vector<std::int32_t> first = predictor.sample({1}, {.tokens = 40, .seed = 3});
  CHECK(first.size() == 40);
  CHECK(predictor.sample({1}, {.tokens = 40, .seed = 3}) == first);
  CHECK(predictor.sample({1}, {.tokens = 40, .seed = 4}) != first);
}

TEST_CASE("greedy sampling uses the last tokens that fit into the context", "[train]") {
  Predictor predictor;
  const infer::Sampling greedy{.tokens = 1, .temperature = 0};
  // Step by step is the same as at once, also past the context of five.
  const std::vector<std::int32_t> drawn = predictor.sample({7, 2}, {.tokens = 12, .temperature = 0});
  std::vector<std::int32_t> tokens = {7, 2};
  for (const std::int32_t expected : drawn) {
    CHECK(predictor.sample(tokens, greedy) == std::vector<std::int32_t>{expected});
    tokens.push_back(expected);
  }
  const std::vector<std::int32_t> last_five(tokens.end() - 5, tokens.end());
  CHECK(predictor.sample(tokens, greedy) == predictor.sample(last_five, greedy));
}

TEST_CASE("padding after the last token does not change what is drawn", "[train]") {
  Predictor predictor;
  States states = first_states(predictor.graph);
  for (const std::vector<double>& padded : {std::vector<double>{7, 2, 9, 10, 3}, std::vector<double>{7, 2, 1, 1, 1}}) {
    Call call{.function = predictor.graph.find("predict", 1), .scalars = {.position = 1}, .inputs = {}};
    call.inputs.push_back(zeros(call.function->values[call.function->inputs[0].value].type));
    call.inputs[0].values = padded;
    const std::vector<double> expected = interpret(call, device::Device::find("reference"), states)[0].values;
    const auto likeliest = std::max_element(expected.begin(), expected.end()) - expected.begin();
    CHECK(predictor.sample({7, 2}, {.tokens = 1, .temperature = 0}) ==
          std::vector<std::int32_t>{static_cast<std::int32_t>(likeliest)});
  }
}

TEST_CASE("an empty prompt is refused in words", "[train]") {
  Predictor predictor;
  CHECK(error_of([&] { static_cast<void>(predictor.sample({}, {})); }) ==
        "2: sampling starts from at least one token: give a prompt that is not empty");
}
