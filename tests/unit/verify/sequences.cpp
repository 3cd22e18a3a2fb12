// Sequences that were continued in slots, pages and chunks, against the reference, which reads each at once.

#include "core/verify/sequences.h"

#include <algorithm>
#include <cmath>

#include "core/partition/partition.h"
#include "core/verify/reference.h"
#include "core/verify/verify.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/verify/support.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

constexpr std::uint64_t seed = 17;
constexpr std::int64_t context = 24;

workload::ModelSettings settings_of(std::string_view model) {
  if (model == "gpt") {
    return model_settings(
        "gpt",
        {{"layers", "2"}, {"heads", "2"}, {"width", "32"}, {"context", "24"}, {"vocab", "11"}, {"bias", "true"}});
  }
  return model_settings("llama", {{"layers", "2"},
                                  {"heads", "4"},
                                  {"kv_heads", "2"},
                                  {"width", "32"},
                                  {"hidden", "64"},
                                  {"context", "24"},
                                  {"vocab", "11"},
                                  {"window", "5"}});
}

/// A small model that continues prompts on one rank, and records its sequences.
class Continued {
 public:
  Continued(const char* model, job::RealType cache, job::Weights weights, bool scores_prompts = false,
            job::RealType activations = job::RealType::float32) {
    job_.infer.chunk = 4;
    job_.infer.page = 4;
    job_.infer.cache = cache;
    job_.infer.weights = weights;
    job_.infer.activations = activations;
    job_.infer.prompt_logprobs = scores_prompts;
    compiled_.model = find_model(model);
    compiled_.settings = settings_of(model);
    compiled_.settings.caches = {.pages = 18, .page = 4, .of_sequence = 6};
    compiled_.slots = 2;
    const workload::DecodingSettings made = compile::decoding_settings(job_, compiled_);
    compiled_.graph = workload::build_decoding(compiled_.model, compiled_.settings, made);
    executor_.emplace(partition::programs_of(compiled_.graph, device::Device::find("cpu"), 1),
                      device::Device::find("cpu"));
    runtime::initialize(compiled_.graph, seed, *executor_);
    session_.emplace(*executor_, compiled_.settings.caches, made, context);
    verify::write_snapshot(folder_.path(), 0, verify::Moment::begin, 0, compiled_.graph, *executor_);
  }

  infer::Session& session() { return *session_; }

  /// Continues all prompts. `drawn`: called after each token.
  void run(const std::function<void()>& drawn = [] {}) {
    while (session_->requests() > 0) {
      session_->step({.drawn = [&](const infer::Drawn&) { drawn(); },
                      .scored = [](const infer::Scored&) {},
                      .computed = [&](const infer::Computed& computed) { recorder_.take(computed); }});
    }
    recorder_.write(folder_.path(), 0);
    sequences_ = verify::read_sequences(folder_.path());
  }

  [[nodiscard]] const std::vector<verify::Workload::Sequence>& sequences() const { return sequences_; }

  [[nodiscard]] graph::Graph reference_graph() const { return verify::graph_of_sequences(job_, compiled_, sequences_); }

  [[nodiscard]] verify::Report compared() const {
    const graph::Graph graph = reference_graph();
    const verify::Workload workload = {.graph = graph, .sequences = sequences_, .seed = seed};
    return verify::verify_snapshots(workload, {folder_.path(), 1, std::ssize(sequences_)});
  }

  /// Puts other pages in place of all pages of a cache.
  void exchange_pages(std::string_view cache) {
    const std::span<float> keys = device::elements_of<float>(executor_->state(compiled_.graph.find_state(cache)));
    std::rotate(keys.begin(), keys.begin() + std::ssize(keys) / compiled_.settings.caches.pages, keys.end());
  }

  /// Changes the last bit of each element of a bfloat16 cache.
  void flip_last_bits(std::string_view cache) {
    const device::TensorView view = executor_->state(compiled_.graph.find_state(cache));
    REQUIRE(view.dtype == graph::DType::bf16);
    for (std::uint16_t& element : std::span(static_cast<std::uint16_t*>(view.data), view.bytes() / 2)) {
      element ^= 1U;
    }
  }

 private:
  TemporaryFolder folder_;
  job::Job job_;
  compile::Compiled compiled_;
  std::optional<runtime::Executor> executor_;
  std::optional<infer::Session> session_;
  verify::SequenceRecorder recorder_;
  std::vector<verify::Workload::Sequence> sequences_;
};

infer::Request request(std::int64_t id, std::vector<std::int32_t> prompt, std::int64_t tokens) {
  return {.id = id, .prompt = std::move(prompt), .tokens = tokens, .sampling = {.temperature = 0}};
}

const std::vector<std::int32_t> long_prompt = {7, 2, 9, 10, 3, 1, 1, 8, 4};

}  // namespace

TEST_CASE("sequences agree with the reference for each type of weights and of caches", "[verify]") {
  using job::RealType;
  using job::Weights;
  for (const char* model : {"gpt", "llama"}) {
    for (const auto& [cache, weights] :
         {std::pair(RealType::float32, Weights::float32), std::pair(RealType::bfloat16, Weights::float32),
          std::pair(RealType::float32, Weights::bfloat16), std::pair(RealType::float32, Weights::float16),
          std::pair(RealType::bfloat16, Weights::int8)}) {
      CAPTURE(model, static_cast<int>(cache), static_cast<int>(weights));
      Continued continued(model, cache, weights);
      continued.session().add(request(1, long_prompt, 6));
      continued.session().add(request(2, {5}, 20));
      continued.session().add(request(3, {7, 2, 9, 10, 6}, 3));  // shares the first chunk
      continued.run();
      REQUIRE(continued.sequences().size() == 3);
      CHECK(continued.sequences()[0].kept == std::vector<std::int32_t>{3, 7, 8, 9, 10, 11, 12, 13});
      CHECK(continued.sequences()[2].kept == std::vector<std::int32_t>{4, 5, 6});
      const verify::Report report = continued.compared();
      INFO(verify::to_text(report));
      CHECK(report.passed());
      CHECK(report.steps() == 3);
      CHECK(report.values_per_step() == 11 * (8 + 20 + 3) / 3);
    }
  }
}

TEST_CASE("products that round activations to bfloat16 agree with the reference, and wrong ones do not", "[verify]") {
  for (const auto& [model, product] : {std::pair("gpt", "matmul"), std::pair("llama", "einsum")}) {
    for (const char* const wrong : {"", product}) {
      CAPTURE(model, wrong);
      const WrongOp op(wrong);
      Continued continued(model, job::RealType::float32, job::Weights::bfloat16, false, job::RealType::bfloat16);
      continued.session().add(request(1, long_prompt, 6));
      continued.session().add(request(2, {5}, 20));
      continued.run();
      const verify::Report report = continued.compared();
      INFO(verify::to_text(report));
      CHECK(report.passed() == std::string_view(wrong).empty());
    }
  }
}

TEST_CASE("in float64, a sequence that is read at once has the logits of predict at each position", "[verify]") {
  const device::Device& reference = device::Device::find("reference");
  for (const char* model : {"gpt", "llama"}) {
    CAPTURE(model);
    Continued continued(model, job::RealType::float32, job::Weights::float32);
    continued.session().add(request(1, long_prompt, 6));
    continued.run();
    const verify::Workload::Sequence& sequence = continued.sequences().at(0);
    const graph::Graph whole = continued.reference_graph();
    verify::Reference at_once({.graph = whole, .sequences = {sequence}, .seed = seed}, 1);
    at_once.initialize();
    at_once.update(0);
    const std::vector<double> logits = at_once.state(whole.find_state(sequence.name));

    const graph::Graph graph = workload::build_prediction(find_model(model), settings_of(model));
    runtime::Executor predicting(partition::programs_of(graph, reference, 1), reference);
    runtime::initialize(graph, seed, predicting);
    const std::size_t program = predicting.find(workload::predict_function, 1);
    const std::span<std::int32_t> inputs = device::elements_of<std::int32_t>(predicting.input(program, "inputs"));
    for (std::size_t row = 0; row < sequence.kept.size(); ++row) {
      std::ranges::fill(inputs, 0);
      std::ranges::copy(sequence.tokens, inputs.begin());
      predicting.run(program, {.position = sequence.kept[row]});
      const std::span<const double> expected = device::elements_of<double>(predicting.output(program, "logits"));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(std::abs(logits[row * expected.size() + i] - expected[i]) < 1e-14);
      }
    }
  }
}

TEST_CASE("logits of prompts that are scored are compared, too", "[verify]") {
  Continued continued("llama", job::RealType::float32, job::Weights::float32, true);
  infer::Request scored = request(1, long_prompt, 2);
  scored.scored_from = 5;
  continued.session().add(std::move(scored));
  continued.run();
  CHECK(continued.sequences().at(0).kept == std::vector<std::int32_t>{3, 4, 5, 6, 7, 8, 9});
  CHECK(continued.compared().passed());
}

TEST_CASE("a wrong page is found at the first position that reads it", "[verify]") {
  for (const char* cache : {"layer.0/attention/keys", "layer.1/attention/values"}) {
    CAPTURE(cache);
    Continued continued("gpt", job::RealType::float32, job::Weights::float32);
    continued.session().add(request(1, {5, 3}, 2));  // ends before the pages are exchanged
    continued.session().add(request(2, long_prompt, 8));
    int drawn = 0;
    continued.run([&] {
      if (++drawn == 5) {  // the third token of the second sequence, computed at position 10
        continued.exchange_pages(cache);
      }
    });
    const verify::Report report = continued.compared();
    INFO(verify::to_text(report));
    CHECK(report.failed() == 1);
    const verify::Difference worst = report.worst().front();
    CHECK(worst.tensor == "sequence 2");
    CHECK(worst.position == 11);
    CHECK_THAT(worst.note, Contains("; the first position that differs is 11"));
    CHECK_THAT(verify::to_json(report), Contains("\"position\": 11}"));
  }
}

TEST_CASE("a wrong last bit in a bfloat16 cache is found, because a run rounds to nearest", "[verify]") {
  for (const char* model : {"gpt", "llama"}) {
    for (const char* cache : {"layer.0/attention/values", "layer.1/attention/values"}) {
      CAPTURE(model, cache);
      Continued continued(model, job::RealType::bfloat16, job::Weights::float32);
      continued.session().add(request(1, long_prompt, 8));
      int drawn = 0;
      continued.run([&] {
        if (++drawn == 3) {  // the third token, computed at position 10
          continued.flip_last_bits(cache);
        }
      });
      const verify::Report report = continued.compared();
      INFO(verify::to_text(report));
      CHECK_FALSE(report.passed());
      CHECK(report.worst().front().position == 11);
    }
  }
}
