#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/task/dataset.h"
#include "core/verify/verify.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

namespace shardrun::test {

/// Samples that are functions of their number: integers below `limit`, or reals of [-1, 1).
class NumberedSamples final : public task::Dataset {
 public:
  explicit NumberedSamples(std::int32_t limit) : limit_(limit) {}

  [[nodiscard]] models::DataShape shape() const override { return {}; }
  [[nodiscard]] std::int64_t evaluation_samples() const override { return 0; }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return 1; }
  [[nodiscard]] std::string describe() const override { return "numbered samples"; }

  void fill_training(std::uint64_t seed, std::int64_t first, const device::TensorView& inputs,
                     const device::TensorView& targets, std::size_t f32_bytes) const override {
    fill(seed, first, inputs, f32_bytes);
    fill(seed + 1, first, targets, f32_bytes);
  }
  void fill_evaluation(std::int64_t first, const device::TensorView& inputs, const device::TensorView& targets,
                       std::size_t f32_bytes) const override {
    fill(101, first, inputs, f32_bytes);
    fill(102, first, targets, f32_bytes);
  }

 private:
  void fill(std::uint64_t stream, std::int64_t first, const device::TensorView& view, std::size_t f32_bytes) const {
    const std::int64_t columns = view.elements() / view.shape[0];
    for (std::int64_t i = 0; i < view.elements(); ++i) {
      const auto sample = static_cast<std::uint64_t>(first + i / columns);
      const std::uint64_t number = mixed(mixed(mixed(stream) + sample) + static_cast<std::uint64_t>(i % columns));
      const double real = static_cast<double>(number % 2048) / 1024 - 1;
      if (view.dtype == graph::DType::i32) {
        static_cast<std::int32_t*>(view.data)[i] =
            static_cast<std::int32_t>(number % static_cast<std::uint64_t>(limit_));
      } else if (f32_bytes == sizeof(double)) {
        static_cast<double*>(view.data)[i] = real;
      } else {
        static_cast<float*>(view.data)[i] = static_cast<float>(real);
      }
    }
  }

  /// Steele, Lea & Flood 2014, SplitMix64.
  static std::uint64_t mixed(std::uint64_t state) {
    state += 0x9e3779b97f4a7c15U;
    state = (state ^ (state >> 30U)) * 0xbf58476d1ce4e5b9U;
    state = (state ^ (state >> 27U)) * 0x94d049bb133111ebU;
    return state ^ (state >> 31U);
  }

  std::int32_t limit_;
};

/// A model's case with samples of its own, as it is verified.
struct VerifyCase {
  explicit VerifyCase(ModelCase given) : model(std::move(given)), samples(model.vocabulary) {}

  [[nodiscard]] verify::Workload workload() const {
    return {.graph = model.graph,
            .microbatch_rows = model.microbatch_rows,
            .evaluation_rows = model.evaluation_rows,
            .dataset = &samples,
            .seed = 17,
            .learning_rate = [](std::int64_t step) { return 0.01 / static_cast<double>(step + 1); }};
  }

  ModelCase model;
  NumberedSamples samples;
};

/// Sizes that divide by nothing: 7 heads, 7 rows in 3 microbatches, a vocabulary of 65, 9 hidden columns.
[[nodiscard]] inline std::vector<VerifyCase> verify_cases() {
  using models::OptimizerSettings;
  const OptimizerSettings adamw{.weight_decay = 0.1, .clip = 0.5};
  const OptimizerSettings momentum{
      .kind = OptimizerSettings::Kind::sgd, .momentum = 0.9, .weight_decay = 0.1, .clip = 0.5};
  const auto training = [](const OptimizerSettings& optimizer, graph::Remat remat = graph::Remat::none) {
    return models::TrainingSettings{
        .batch = 7, .microbatches = 3, .eval_rows = 3, .eval_samples = 5, .remat = remat, .optimizer = optimizer};
  };
  const auto gpt = [&](std::string name, const char* bias, const char* tied, const char* dropout,
                       const OptimizerSettings& optimizer, graph::Remat remat = graph::Remat::none) {
    return VerifyCase(training_case(std::move(name), "gpt",
                                    {{"layers", "2"},
                                     {"heads", "7"},
                                     {"width", "28"},
                                     {"context", "8"},
                                     {"bias", bias},
                                     {"tied", tied},
                                     {"dropout", dropout}},
                                    {.vocab = 65}, training(optimizer, remat)));
  };
  std::vector<VerifyCase> cases;
  cases.push_back(gpt("gpt tied", "false", "true", "0", adamw));
  cases.push_back(gpt("gpt with biases and dropout", "true", "false", "0.2", adamw));
  cases.push_back(gpt("gpt, layers computed again", "true", "false", "0.2", adamw, graph::Remat::layer));
  cases.push_back(gpt("gpt, what is cheap computed again", "true", "true", "0.2", adamw, graph::Remat::selective));
  cases.push_back(gpt("gpt tied with biases and dropout, momentum", "true", "true", "0.1", momentum));
  cases.push_back(
      VerifyCase(training_case("mlp", "mlp", {{"hidden", "9"}}, {.features = 5, .outputs = 3}, training(adamw))));
  cases.push_back(
      VerifyCase(training_case("mlp of labels, momentum", "mlp", {{"hidden", "23"}, {"loss", "cross_entropy"}},
                               {.vocab = 4, .features = 17}, training(momentum))));
  return cases;
}

struct NamedPlan {
  std::string name;
  partition::Plan plan;
};

/// Rows over `data`, and heads, hidden columns and vocabulary over `model`.
[[nodiscard]] inline std::vector<NamedPlan> verify_plans() {
  std::vector<NamedPlan> plans;
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U}) {
    plans.push_back({"data " + std::to_string(ranks), data_parallel(ranks, 400 * ranks)});
    plans.push_back({"model " + std::to_string(ranks), tensor_parallel(ranks)});
  }
  plans.push_back({"data 2, model 2",
                   plan_of({{"data", 2}, {"model", 2}},
                           {{"batch", {"data"}}, {"heads", {"model"}}, {"mlp", {"model"}}, {"vocab", {"model"}}})});
  return plans;
}

/// Where a plan places tensors: those of the optimizer over `data`, or all that lasts between steps.
[[nodiscard]] inline std::vector<NamedPlan> stored_plans(const graph::Graph& graph) {
  partition::Plan optimizer = data_parallel(3);
  partition::Plan stored = data_parallel(2);
  for (const graph::State& state : graph.states) {
    if (state.kind == graph::StateKind::parameter) {
      plugins::DimSplits dims(state.type.shape.size());
      dims[0] = {"data"};
      optimizer.draft.tensors.push_back({state.name, plugins::TensorRole::optimizer, dims});
      stored.draft.tensors.push_back({state.name, plugins::TensorRole::store, dims});
      stored.draft.tensors.push_back(
          {state.name, plugins::TensorRole::use, plugins::DimSplits(state.type.shape.size())});
    }
  }
  return {{"optimizer's states split", optimizer}, {"everything stored split", stored}};
}

}  // namespace shardrun::test
