#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device/device.h"
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

/// The op whose kernel is wrong; "" if none is.
inline std::string& wrong_op() {
  static std::string name;
  return name;
}

/// A kernel that is right unless its op is the wrong one: then the largest of each thousand elements of its first
/// result is too large by a ten-thousandth.
class Wrong final : public device::AddedKernel {
 public:
  explicit Wrong(device::Kernel right) : right_(right) {}

  void run(const device::KernelCall& call) const override {
    right_.run(call);
    const device::TensorView& result = call.outputs[0];
    if (right_.op != wrong_op() || result.dtype != graph::DType::f32) {
      return;
    }
    const std::span<float> elements(static_cast<float*>(result.data), static_cast<std::size_t>(result.elements()));
    constexpr std::size_t part = 1000;
    for (std::size_t first = 0; first < elements.size(); first += part) {
      const std::span<float> some = elements.subspan(first, std::min(part, elements.size() - first));
      *std::ranges::max_element(some, {}, [](float x) { return std::abs(x); }) *= 1.0001F;
    }
  }
  [[nodiscard]] std::size_t scratch_bytes(const graph::OpShape& shape) const override {
    return right_.scratch_bytes == nullptr ? 0 : right_.scratch_bytes(shape, 1);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const graph::OpShape& shape) const override {
    return right_.prepare == nullptr ? nullptr : right_.prepare(shape);
  }

 private:
  const device::Kernel right_;
};

/// Makes an op's kernel wrong while this object exists; "": none.
class WrongOp {
 public:
  explicit WrongOp(const std::string& op) {
    if (op.empty()) {
      return;
    }
    const device::Kernel& kernel = device::Device::find("cpu").kernel(op);
    if (kernel.added == nullptr) {
      device::add_kernel("cpu", op, std::make_unique<Wrong>(kernel));
    }
    wrong_op() = op;
  }
  WrongOp(const WrongOp&) = delete;
  WrongOp& operator=(const WrongOp&) = delete;
  ~WrongOp() { wrong_op().clear(); }
};

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
