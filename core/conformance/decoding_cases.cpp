#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/compile/model.h"
#include "core/conformance/model_member.h"
#include "core/device/host_tensor.h"
#include "core/infer/session.h"
#include "core/partition/partition.h"

namespace shardrun::conformance {
namespace {

constexpr std::uint64_t seed = 17;
constexpr sdk::CacheSizes no_caches = {};

/// A model on the cpu, with parameters that depend on their names alone.
struct OnCpu {
  explicit OnCpu(const graph::Graph& graph)
      : executor(partition::programs_of(graph, device::Device::find("cpu"), 1), device::Device::find("cpu")) {
    runtime::initialize(graph, seed, executor);
  }

  runtime::Executor executor;
};

/// The logits after a sequence of tokens, from the function `predict`, which computes all positions of the sequence.
std::vector<float> predicted(runtime::Executor& executor, std::span<const std::int32_t> tokens) {
  const std::size_t program = executor.find(workload::predict_function, 1);
  const std::span<std::int32_t> row = device::elements_of<std::int32_t>(executor.input(program, "inputs"));
  std::ranges::fill(row, 0);
  std::ranges::copy(tokens, row.begin());
  executor.run(program, {.position = static_cast<std::int64_t>(tokens.size()) - 1});
  const std::span<const float> logits = device::elements_of<float>(executor.output(program, "logits"));
  return {logits.begin(), logits.end()};
}

void require_near(std::span<const float> found, std::span<const float> expected, const std::string& what) {
  double largest = 0;
  for (const float each : expected) {
    largest = std::max(largest, std::abs(static_cast<double>(each)));
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i]));
    if (!(difference <= 1e-4 * std::max(largest, 1e-3))) {
      throw Failure(fmt::format("{}: logit {} is {} by 'decode' and {} by 'predict', which computes all positions",
                                what, i, found[i], expected[i]));
    }
  }
}

/// Decodes from two prompts of different lengths up to the context. All logits must be near those of `predict`.
void check_decoding(const ModelJob& job, const workload::Model& model, const std::vector<OptionSpec>& specs) {
  constexpr std::int64_t page = 2;
  constexpr std::int64_t slots = 2;
  workload::ModelSettings settings = job.settings;
  const std::int64_t context = checked_with_defaults(specs, settings.options).integer("context");
  const std::int64_t pages = (context + page - 1) / page;
  settings.caches = {.pages = slots * pages, .page = page, .of_sequence = pages};
  const workload::DecodingSettings made{.slots = slots, .chunk = 3};
  OnCpu decoding(workload::build_decoding(model, settings, made));
  settings.caches = no_caches;
  OnCpu predicting(workload::build_prediction(model, settings));
  infer::Session session(decoding.executor, {.pages = slots * pages, .page = page, .of_sequence = pages}, made,
                         context + 1);
  std::vector<std::vector<std::int32_t>> sequences;
  for (const std::int64_t prompted : {std::max<std::int64_t>(context - 2, 1), std::int64_t{1}}) {
    std::vector<std::int32_t>& tokens = sequences.emplace_back();
    for (std::int64_t t = 0; t < prompted; ++t) {
      tokens.push_back(static_cast<std::int32_t>((5 * t + prompted) % std::max<std::int64_t>(settings.data.vocab, 1)));
    }
    session.add({.id = std::ssize(sequences) - 1,
                 .prompt = tokens,
                 .tokens = context - prompted + 1,
                 .sampling = {.temperature = 0}});
  }
  while (session.requests() > 0) {
    session.step({.drawn = [&](const infer::Drawn& drawn) {
      std::vector<std::int32_t>& tokens = sequences[static_cast<std::size_t>(drawn.id)];
      require_near(drawn.logits, predicted(predicting.executor, tokens),
                   fmt::format("{}, after {} tokens", job.name, tokens.size()));
      tokens.push_back(drawn.token);
    }});
  }
}

void decodes_as_it_predicts(ModelMember& member) {
  if (!member.model().has("decode")) {
    return member.note("nothing to check: the model has no function decode");
  }
  if (!member.model().has("predict")) {
    throw Failure("it has the function decode and lacks predict, with which it is compared");
  }
  const workload::Model model = compile::model_of(member.model());
  for (const ModelJob& job : member.jobs()) {
    if (job.trains && job.settings.data.features == 0) {
      check_decoding(job, model, member.model().options());
    }
  }
}

}  // namespace

void add_decoding_cases(std::vector<ModelCase>& cases) {
  cases.push_back({.name = "decode with caches computes what predict does", .run = decodes_as_it_predicts, .ranks = 1});
}

}  // namespace shardrun::conformance
