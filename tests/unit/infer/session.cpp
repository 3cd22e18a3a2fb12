#include "core/infer/session.h"

#include <cmath>
#include <map>

#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

constexpr std::int64_t context = 24;

workload::ModelSettings settings_of(std::string_view model) {
  if (model == "gpt") {
    return model_settings(
        "gpt", {{"layers", "2"}, {"heads", "2"}, {"width", "8"}, {"context", "24"}, {"vocab", "11"}, {"bias", "true"}});
  }
  return model_settings("llama", {{"layers", "2"},
                                  {"heads", "4"},
                                  {"kv_heads", "2"},
                                  {"width", "16"},
                                  {"hidden", "20"},
                                  {"context", "24"},
                                  {"vocab", "11"},
                                  {"window", "5"},
                                  {"qk_norm", "true"}});
}

/// A small model with random weights, and a session of it.
struct Decoder {
  Decoder(std::string_view model, std::int64_t slots, sdk::CacheSizes caches,
          graph::DType cache_type = graph::DType::f32, bool scores_prompts = false)
      : settings(settings_of(model)) {
    settings.caches = caches;
    const workload::DecodingSettings made{
        .slots = slots, .chunk = 4, .cache = cache_type, .scores_prompts = scores_prompts};
    graph = workload::build_decoding(find_model(model), settings, made);
    executor.emplace(partition::programs_of(graph, device::Device::find("cpu"), 1), device::Device::find("cpu"));
    const States states = first_states(graph);
    for (const graph::StateId s : states.ids()) {
      if (graph.states[s].kind == graph::StateKind::parameter) {
        write_view(states[s], executor->state(s));
      }
    }
    session.emplace(*executor, caches, made, context);
  }

  /// Answers all requests, and keeps the logits from which each token was drawn.
  void run() {
    while (session->requests() > 0) {
      session->step({.drawn =
                         [&](const infer::Drawn& drawn) {
                           answers[drawn.id].push_back(drawn.token);
                           logits[drawn.id].emplace_back(drawn.logits.begin(), drawn.logits.end());
                           order.push_back(drawn.id);
                         },
                     .scored =
                         [&](const infer::Scored& told) {
                           scored[told.id].emplace_back(told.logits.begin(), told.logits.end());
                           ended += told.is_last ? 1 : 0;
                         }});
    }
  }

  workload::ModelSettings settings;
  graph::Graph graph;
  std::optional<runtime::Executor> executor;
  std::optional<infer::Session> session;
  std::map<std::int64_t, std::vector<std::int32_t>> answers;
  std::map<std::int64_t, std::vector<std::vector<float>>> logits;
  std::map<std::int64_t, std::vector<std::vector<float>>> scored;
  std::int64_t ended = 0;  ///< requests that were only scored
  std::vector<std::int64_t> order;
};

/// The logits after these tokens, by the model's function `predict`.
std::vector<float> recomputed(std::string_view model, const std::vector<std::int32_t>& tokens) {
  const graph::Graph graph = workload::build_prediction(find_model(model), settings_of(model));
  runtime::Executor executor(partition::programs_of(graph, device::Device::find("cpu"), 1),
                             device::Device::find("cpu"));
  const States states = first_states(graph);
  for (const graph::StateId s : states.ids()) {
    write_view(states[s], executor.state(s));
  }
  const std::size_t program = executor.find(workload::predict_function, 1);
  const std::span<std::int32_t> row = device::elements_of<std::int32_t>(executor.input(program, "inputs"));
  std::ranges::fill(row, 0);
  std::ranges::copy(tokens, row.begin());
  executor.run(program, {.position = static_cast<std::int64_t>(tokens.size()) - 1});
  const std::span<const float> logits = device::elements_of<float>(executor.output(program, "logits"));
  return {logits.begin(), logits.end()};
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

infer::Request request(std::int64_t id, std::vector<std::int32_t> prompt, std::int64_t tokens) {
  return {.id = id, .prompt = std::move(prompt), .tokens = tokens, .sampling = {.temperature = 0}};
}

constexpr sdk::CacheSizes ample = {.pages = 18, .page = 4, .of_sequence = 6};

}  // namespace

TEST_CASE("with caches, logits are those of all tokens computed again", "[infer]") {
  for (const char* model : {"gpt", "llama"}) {
    CAPTURE(model);
    Decoder decoder(model, 2, ample);
    const std::vector<std::vector<std::int32_t>> prompts = {{7, 2, 9, 10, 3, 1, 1, 8, 4}, {5}, {1, 2, 3, 4}};
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      decoder.session->add(request(static_cast<std::int64_t>(i), prompts[i], context - std::ssize(prompts[i])));
    }
    decoder.run();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto id = static_cast<std::int64_t>(i);
      std::vector<std::int32_t> tokens = prompts[i];
      REQUIRE(std::ssize(decoder.answers[id]) == context - std::ssize(tokens));
      for (std::size_t n = 0; n < decoder.answers[id].size(); ++n) {
        CHECK(largest_difference(decoder.logits[id][n], recomputed(model, tokens)) < 1e-5);
        tokens.push_back(decoder.answers[id][n]);
      }
    }
  }
}

TEST_CASE("a cache in bfloat16 is near one in float32, and is not the same", "[infer]") {
  Decoder wide("llama", 1, ample);
  Decoder narrow("llama", 1, ample, graph::DType::bf16);
  for (Decoder* decoder : {&wide, &narrow}) {
    decoder->session->add(request(0, {7, 2, 9, 10, 3, 1, 1, 8, 4}, 1));
    decoder->run();
  }
  const double difference = largest_difference(wide.logits[0][0], narrow.logits[0][0]);
  CHECK(difference > 0);
  CHECK(difference < 0.05);
}

TEST_CASE("a sequence does not depend on the others, nor on when it starts", "[infer]") {
  const std::vector<std::int32_t> prompt = {7, 2, 9, 10, 3};
  Decoder alone("llama", 3, ample);
  alone.session->add(request(0, prompt, 12));
  alone.run();
  Decoder crowd("llama", 3, ample);
  for (std::int64_t id = 1; id < 5; ++id) {
    crowd.session->add(request(id, std::vector<std::int32_t>(static_cast<std::size_t>(3 * id), 1), 2 * id));
  }
  crowd.session->add(request(0, prompt, 12));
  crowd.run();
  CHECK(crowd.answers[0] == alone.answers[0]);
  CHECK(crowd.logits[0] == alone.logits[0]);
  CHECK(crowd.answers.size() == 5);
}

TEST_CASE("a request starts once there are a slot and pages for all its tokens", "[infer]") {
  // Five pages of four tokens: the first two requests take four, and the third waits for one of them.
  Decoder decoder("gpt", 3, {.pages = 5, .page = 4, .of_sequence = 5});
  decoder.session->add(request(1, {1, 2, 3}, 6));
  decoder.session->add(request(2, {4, 5}, 4));
  decoder.session->add(request(3, {6}, 16));
  decoder.run();
  CHECK(decoder.answers[1].size() == 6);
  CHECK(decoder.answers[2].size() == 4);
  CHECK(decoder.answers[3].size() == 16);
  const auto first_of_3 = std::ranges::find(decoder.order, 3);
  CHECK(std::count(decoder.order.begin(), first_of_3, 1) == 6);
  CHECK(std::count(decoder.order.begin(), first_of_3, 2) == 4);
}

TEST_CASE("pages of ended and cancelled requests are used again", "[infer]") {
  Decoder decoder("gpt", 2, {.pages = 6, .page = 4, .of_sequence = 6});
  for (std::int64_t id = 0; id < 20; ++id) {
    decoder.session->add(request(id, {1, 2, 3, 4, 5}, 10));
  }
  std::int64_t ended = 0;
  while (decoder.session->requests() > 0) {
    decoder.session->step({.drawn = [&](const infer::Drawn& drawn) {
      ended += drawn.is_last ? 1 : 0;
      if (drawn.id % 3 == 0) {
        decoder.session->cancel(drawn.id);
      }
      if (drawn.id == 10) {
        decoder.session->cancel(11);  // it waits, or is being answered
      }
    }});
  }
  CHECK(ended == 20 - 7 - 1);
}

TEST_CASE("a sequence ends with the context, which need not fill its last page", "[infer]") {
  Decoder decoder("gpt", 1, {.pages = 8, .page = 7, .of_sequence = 4});
  decoder.session->add(request(0, {1, 2, 3}, 1000));
  decoder.run();
  CHECK(std::ssize(decoder.answers[0]) == context - 3);
}

TEST_CASE("a step ends with the first call that adds tokens, or with a chunk if no token can be added", "[infer]") {
  Decoder decoder("llama", 2, ample);
  std::vector<std::size_t> drawn;
  const auto step = [&] {
    std::size_t tokens = 0;
    decoder.session->step({.drawn = [&](const infer::Drawn&) { ++tokens; }});
    drawn.push_back(tokens);
  };
  decoder.session->add(request(1, {7, 2, 9, 10, 3, 1}, 9));
  step();  // a chunk
  step();  // the rest, and the token behind it
  step();  // a token
  decoder.session->add(request(2, {5}, 2));
  step();  // the token behind the second prompt
  step();  // a token of each
  CHECK(drawn == std::vector<std::size_t>{0, 1, 1, 1, 2});
}

TEST_CASE("a sequence ends with an end token", "[infer]") {
  Decoder decoder("gpt", 1, ample);
  decoder.session->add(request(0, {1, 2, 3}, 10));
  decoder.run();
  const std::int32_t third = decoder.answers[0][2];
  infer::Request ending = request(1, {1, 2, 3}, 10);
  ending.ends = {third};
  decoder.session->add(ending);
  decoder.run();
  const auto first = std::ranges::find(decoder.answers[0], third) - decoder.answers[0].begin();
  CHECK(std::ssize(decoder.answers[1]) == first + 1);
  CHECK(decoder.session->drawn() == 10 + first + 1);
  CHECK(decoder.session->prefilled() == 6);
}

TEST_CASE("chunks with which prompts begin alike are read once, and change no bit", "[infer]") {
  const std::vector<std::vector<std::int32_t>> prompts = {{7, 2, 9, 10, 3, 1, 1, 8, 4},
                                                          {7, 2, 9, 10, 3, 1, 1, 8},
                                                          {7, 2, 9, 10, 5, 5},
                                                          {7, 2, 9, 10, 3, 1, 1, 8, 4, 4, 6, 2, 1}};
  Decoder sharing("llama", 2, ample);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    sharing.session->add(request(static_cast<std::int64_t>(i), prompts[i], 5));
  }
  sharing.run();
  CHECK(sharing.session->shared() == 0 + 4 + 4 + 8);  // a prompt's last token is always read
  CHECK(sharing.session->prefilled() == 9 + 4 + 2 + 5);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Decoder alone("llama", 2, ample);
    alone.session->add(request(static_cast<std::int64_t>(i), prompts[i], 5));
    alone.run();
    CHECK(sharing.logits[static_cast<std::int64_t>(i)] == alone.logits[static_cast<std::int64_t>(i)]);
  }
}

TEST_CASE("tokens of a prompt are scored by the logits before them", "[infer]") {
  const std::vector<std::int32_t> prompt = {7, 2, 9, 10, 3, 1, 1, 8, 4};
  for (const char* model : {"gpt", "llama"}) {
    Decoder decoder(model, 2, ample, graph::DType::f32, true);
    std::vector<infer::Request> requests = {request(0, prompt, 0), request(1, prompt, 3), request(2, prompt, 0),
                                            request(3, prompt, 1)};
    requests[0].scored_from = 0;
    requests[1].scored_from = 6;
    requests[2].scored_from = 8;
    for (const infer::Request& each : requests) {
      decoder.session->add(each);
    }
    decoder.run();
    REQUIRE(decoder.scored[0].size() == prompt.size());
    CHECK(decoder.scored[0][0].empty());
    for (std::size_t i = 1; i < prompt.size(); ++i) {
      const std::vector<float> expected = recomputed(model, {prompt.begin(), prompt.begin() + static_cast<long>(i)});
      CHECK(largest_difference(decoder.scored[0][i], expected) < 1e-5);
    }
    CHECK(decoder.scored[1] == std::vector(decoder.scored[0].begin() + 6, decoder.scored[0].end()));
    CHECK(decoder.scored[2] == std::vector(decoder.scored[0].begin() + 8, decoder.scored[0].end()));
    CHECK(decoder.scored[3].empty());
    CHECK(decoder.session->shared() ==
          4 + 4 + 8);  // what precedes the logits of tokens that are scored is not read again
    CHECK(decoder.ended == 2);
    // Other prompts do without the logits of all tokens.
    const auto rows = [&](std::string_view name) {
      const graph::Function& function = *std::ranges::find(decoder.graph.functions, name, &graph::Function::name);
      return function.values[function.outputs.front().value].type.shape.front();
    };
    CHECK(rows(workload::prefill_function) == 1);
    CHECK(rows(workload::score_function) == 4);
    CHECK(decoder.answers[1].size() == 3);
    CHECK(largest_difference(decoder.logits[3][0], recomputed(model, prompt)) < 1e-5);
  }
}

TEST_CASE("all logits are told, with the position behind which they are", "[infer]") {
  for (const bool scores_prompts : {false, true}) {
    Decoder decoder("gpt", 2, ample, graph::DType::f32, scores_prompts);
    const std::vector<std::int32_t> prompt = {7, 2, 9, 10, 3, 1, 1, 8, 4};
    infer::Request asked = request(1, prompt, 3);
    if (scores_prompts) {
      asked.scored_from = 6;
    }
    decoder.session->add(std::move(asked));
    std::vector<std::int64_t> positions;
    while (decoder.session->requests() > 0) {
      decoder.session->step(
          {.drawn = [](const infer::Drawn&) {},
           .scored = [](const infer::Scored&) {},
           .computed =
               [&](const infer::Computed& computed) {
                 CHECK(computed.id == 1);
                 const std::size_t vocabulary = computed.logits.size() / static_cast<std::size_t>(computed.rows);
                 for (std::int64_t row = 0; row < computed.rows; ++row) {
                   const std::int64_t position = computed.first + row;
                   positions.push_back(position);
                   const auto read = computed.tokens.first(static_cast<std::size_t>(position) + 1);
                   const auto own = computed.logits.subspan(static_cast<std::size_t>(row) * vocabulary, vocabulary);
                   CHECK(largest_difference({own.begin(), own.end()}, recomputed("gpt", {read.begin(), read.end()})) <
                         1e-5);
                 }
               }});
    }
    // The ends of the chunks; all of a chunk whose logits score tokens.
    CHECK(positions == (scores_prompts ? std::vector<std::int64_t>{3, 4, 5, 6, 7, 8, 9, 10}
                                       : std::vector<std::int64_t>{3, 7, 8, 9, 10}));
  }
}
