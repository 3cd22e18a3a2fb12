#include "core/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::test;
using infer::draw_token;

namespace {

const std::vector<float> logits = {0.0F, std::log(3.0F), -1e30F, std::log(4.0F), 0.0F};

/// How often each token is drawn, of a thousand draws spread evenly over [0, 1).
std::map<std::int32_t, int> counts(const infer::Sampling& settings, const infer::Sequence& sequence = {}) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < 1000; ++i) {
    ++counts[draw_token(logits, settings, sequence, (i + 0.5) / 1000)];
  }
  return counts;
}

/// Whether the same tokens are drawn equally often, except for one draw at each end of a token's share.
bool are_alike(const std::map<std::int32_t, int>& a, const std::map<std::int32_t, int>& b) {
  return std::ranges::equal(a, b, [](const auto& of_a, const auto& of_b) {
    return of_a.first == of_b.first && std::abs(of_a.second - of_b.second) <= 1;
  });
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

  std::vector<std::int32_t> sample(std::vector<std::int32_t> tokens, std::int64_t count,
                                   const infer::Sampling& settings) {
    std::vector<std::int32_t> drawn;
    infer::sample(
        executor, std::move(tokens), count, settings, [] { return true; },
        [&](std::int32_t token) { drawn.push_back(token); });
    return drawn;
  }
};

}  // namespace

TEST_CASE("temperature 0 draws the likeliest token, and the first of equals", "[infer]") {
  CHECK(counts({.temperature = 0}) == std::map<std::int32_t, int>{{3, 1000}});
  CHECK(draw_token(std::vector<float>{1, 2, 2, 0}, {.temperature = 0}, {}, 0.9) == 1);
}

TEST_CASE("tokens are drawn with the softmax's probabilities", "[infer]") {
  CHECK(are_alike(counts({.temperature = 1}), {{0, 111}, {1, 334}, {3, 444}, {4, 111}}));
}

TEST_CASE("temperature sharpens and flattens", "[infer]") {
  // exp(logit / 0.5) is the square: 1, 9, 0, 16, 1.
  CHECK(counts({.temperature = 0.5})[3] == Approx(1000 * 16.0 / 27).margin(1));
  CHECK(counts({.temperature = 2})[3] == Approx(1000 * 2 / (2 + std::sqrt(3.0) + 2)).margin(1));
}

TEST_CASE("top k draws only from the k likeliest tokens", "[infer]") {
  CHECK(counts({.temperature = 1, .top_k = 1}) == std::map<std::int32_t, int>{{3, 1000}});
  CHECK(counts({.temperature = 1, .top_k = 2}) == std::map<std::int32_t, int>{{1, 429}, {3, 571}});
  CHECK(are_alike(counts({.temperature = 1, .top_k = 99}), counts({.temperature = 1})));
}

TEST_CASE("top p draws from the fewest likeliest tokens with that probability", "[infer]") {
  // The probabilities are 4/9, 3/9, 1/9, 1/9.
  CHECK(counts({.top_p = 0.4}) == std::map<std::int32_t, int>{{3, 1000}});
  CHECK(counts({.top_p = 0.5}) == std::map<std::int32_t, int>{{1, 429}, {3, 571}});
  CHECK(counts({.top_p = 0.77}) == counts({.top_p = 0.5}));
  CHECK(counts({.top_p = 0.8}).size() == 3);
  CHECK(counts({.top_p = 0}) == std::map<std::int32_t, int>{{3, 1000}});
}

TEST_CASE("min p draws from tokens with that share of the highest probability", "[infer]") {
  CHECK(counts({.min_p = 0.8}) == std::map<std::int32_t, int>{{3, 1000}});
  CHECK(counts({.min_p = 0.7}) == std::map<std::int32_t, int>{{1, 429}, {3, 571}});
  CHECK(counts({.min_p = 0.2}).size() == 4);
}

TEST_CASE("penalties act on tokens that were seen, or drawn", "[infer]") {
  const std::vector<std::int32_t> tokens = {3, 1, 1};
  const infer::Sequence sequence = {tokens, 1};  // token 3 is the prompt
  const double none = 1 + 3 + 4 + 1;
  CHECK(counts({}, sequence) == counts({}));
  // exp(log(3) - 2 log(3)) = 1/3, and token 3 was not drawn.
  CHECK(counts({.frequency = std::log(3.0)}, sequence)[1] == Approx(1000.0 / 3 / (none - 3 + 1.0 / 3)).margin(1));
  CHECK(counts({.presence = std::log(3.0)}, sequence)[1] == Approx(1000 / (none - 2)).margin(1));
  // Positive logits are halved, also of the prompt: 3 and 4 become their roots.
  const double roots = std::sqrt(3.0) + 2;
  CHECK(counts({.repetition = 2}, sequence)[3] == Approx(1000 * 2 / (2 + roots)).margin(1));
  CHECK(draw_token(std::vector<float>{-1, -1.5}, {.repetition = 2, .temperature = 0}, {std::vector<std::int32_t>{0}, 1},
                   0) == 1);
}

TEST_CASE("logits that are not finite are refused", "[infer]") {
  for (const float bad : {NAN, INFINITY}) {
    CHECK(error_of([&] {
            static_cast<void>(draw_token(std::vector<float>{1, bad, 2}, {}, {}, 0.5));
          }).starts_with("2: the model's logits are not finite numbers"));
  }
  CHECK(draw_token(std::vector<float>{1, -INFINITY}, {}, {}, 0.999) == 0);
}

TEST_CASE("log probabilities are those of the softmax", "[infer]") {
  CHECK(infer::log_probability(logits, 3) == Approx(std::log(4.0 / 9)));
  CHECK(infer::log_probability(logits, 0) == Approx(std::log(1.0 / 9)));
}

TEST_CASE("a seed gives the same samples again, and another seed gives others", "[infer]") {
  Predictor predictor;
  const std::vector<std::int32_t> first = predictor.sample({1}, 40, {.seed = 3});
  CHECK(first.size() == 40);
  CHECK(predictor.sample({1}, 40, {.seed = 3}) == first);
  CHECK(predictor.sample({1}, 40, {.seed = 4}) != first);
}

TEST_CASE("greedy sampling uses the last tokens that fit into the context", "[infer]") {
  Predictor predictor;
  const infer::Sampling greedy{.temperature = 0};
  // Step by step is the same as at once, also past the context of five.
  const std::vector<std::int32_t> drawn = predictor.sample({7, 2}, 12, greedy);
  std::vector<std::int32_t> tokens = {7, 2};
  for (const std::int32_t expected : drawn) {
    CHECK(predictor.sample(tokens, 1, greedy) == std::vector<std::int32_t>{expected});
    tokens.push_back(expected);
  }
  const std::vector<std::int32_t> last_five(tokens.end() - 5, tokens.end());
  CHECK(predictor.sample(tokens, 1, greedy) == predictor.sample(last_five, 1, greedy));
}

TEST_CASE("padding after the last token does not change what is drawn", "[infer]") {
  Predictor predictor;
  States states = first_states(predictor.graph);
  for (const std::vector<double>& padded : {std::vector<double>{7, 2, 9, 10, 3}, std::vector<double>{7, 2, 1, 1, 1}}) {
    Call call{.function = predictor.graph.find("predict", 1), .scalars = {.position = 1}, .inputs = {}};
    call.inputs.push_back(zeros(call.function->values[call.function->inputs[0].value].type));
    call.inputs[0].values = padded;
    const std::vector<double> expected = interpret(call, device::Device::find("reference"), states)[0].values;
    const auto likeliest = std::max_element(expected.begin(), expected.end()) - expected.begin();
    CHECK(predictor.sample({7, 2}, 1, {.temperature = 0}) ==
          std::vector<std::int32_t>{static_cast<std::int32_t>(likeliest)});
  }
}

TEST_CASE("an empty prompt is refused in words", "[infer]") {
  Predictor predictor;
  CHECK(error_of([&] { static_cast<void>(predictor.sample({}, 1, {})); }) ==
        "2: sampling starts from at least one token: give a prompt that is not empty");
}
