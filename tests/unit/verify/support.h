#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/verify/verify.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"
#include "tests/support/verify_case.h"

namespace shardrun::test {

/// Cases with sizes that divide by nothing: 7 heads, 7 rows in 3 microbatches, a vocabulary of 65, 9 hidden columns.
/// `mixed`: as in workload::TrainingSettings.
[[nodiscard]] inline std::vector<VerifyCase> verify_cases(std::optional<graph::DType> mixed = std::nullopt) {
  using workload::OptimizerSettings;
  const OptimizerSettings adamw{.weight_decay = 0.1, .clip = 0.5};
  const OptimizerSettings momentum{
      .kind = OptimizerSettings::Kind::sgd, .momentum = 0.9, .weight_decay = 0.1, .clip = 0.5};
  const auto training = [&](const OptimizerSettings& optimizer, graph::Remat remat = graph::Remat::none) {
    return workload::TrainingSettings{.batch = 7,
                                      .microbatches = 3,
                                      .eval_rows = 3,
                                      .eval_samples = 5,
                                      .remat = remat,
                                      .mixed = mixed,
                                      .optimizer = optimizer};
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
  plan::Plan plan;
};

/// Plans that split rows over `data`, and heads, hidden columns and vocabulary over `model`.
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

/// Plans that split what is stored over `data`: the optimizer's states, or all that lasts between steps.
[[nodiscard]] inline std::vector<NamedPlan> stored_plans(const graph::Graph& graph) {
  plan::Plan optimizer = data_parallel(3);
  plan::Plan stored = data_parallel(2);
  for (const graph::State& state : graph.states) {
    if (state.kind == graph::StateKind::parameter) {
      plan::DimSplits dims(state.type.shape.size());
      dims[0] = {"data"};
      optimizer.tensors.push_back({state.name, plan::TensorRole::optimizer, dims});
      stored.tensors.push_back({state.name, plan::TensorRole::store, dims});
      stored.tensors.push_back({state.name, plan::TensorRole::use, plan::DimSplits(state.type.shape.size())});
    }
  }
  return {{"optimizer's states split", optimizer}, {"everything stored split", stored}};
}

}  // namespace shardrun::test
