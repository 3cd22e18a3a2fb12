#include <set>

#include "core/verify/verify.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/faults.h"
#include "tests/unit/verify/support.h"

using namespace shardrun;
using namespace shardrun::test;
using runtime::Fault;
using verify::What;

namespace {

VerifyCase small_mlp() {
  return VerifyCase(training_case("mlp", "mlp", {{"hidden", "9"}}, {.features = 5, .outputs = 3},
                                  {.batch = 6, .microbatches = 4, .optimizer = {.clip = 0.5}}));
}

}  // namespace

// Adam's first step moves every element by the same amount, so blocks that change places show only from the third
// step on.
TEST_CASE("every fault in a transfer of a step fails the verification", "[verify]") {
  for (const VerifyCase& checked : {small_gpt(), small_mlp()}) {
    std::vector<NamedPlan> plans = stored_plans(checked.model.graph);
    plans.push_back({"data 2", data_parallel(2, 400)});
    plans.push_back({"model 2", tensor_parallel(2)});
    for (const NamedPlan& plan : plans) {
      const partition::Partition partition = partition::split(checked.model.graph, plan.plan);
      const std::vector<Numbered> transfers = visible_transfers(checked.model, partition, step_calls(checked.model));
      REQUIRE_FALSE(transfers.empty());
      for (std::size_t t = 0; t < transfers.size(); t += depth<std::size_t>(1, 5, 16)) {
        const auto& [number, transfer] = transfers[t];
        for (const Fault::Kind kind : {Fault::Kind::omit, Fault::Kind::swap, Fault::Kind::scale}) {
          if (is_visible(transfer, kind)) {
            INFO(checked.model.name << ", " << plan.name << ", transfer " << number << " of " << transfer.name
                                    << ", fault " << static_cast<int>(kind));
            CHECK_FALSE(
                verify::verify_interpreted(checked.workload(), partition, {.steps = 3, .fault = Fault{kind, number}})
                    .passed());
          }
        }
      }
    }
  }
}

TEST_CASE("a fault in the reduction of a gradient is reported only under its parameter", "[verify]") {
  const VerifyCase checked = small_gpt();
  const partition::Partition partition = partition::split(checked.model.graph, data_parallel(2, 1));
  std::set<std::string> named;
  for (const auto& [number, transfer] : visible_transfers(checked.model, partition, step_calls(checked.model))) {
    const graph::StateId state = checked.model.graph.find_state(transfer.name);
    if (!state.exists() || checked.model.graph.states[state].kind != graph::StateKind::gradient) {
      continue;
    }
    const graph::State& gradient = checked.model.graph.states[state];
    const std::string& parameter = checked.model.graph.states[gradient.of_parameter].name;
    const verify::Report report =
        verify::verify_interpreted(checked.workload(), partition, {.fault = Fault{Fault::Kind::scale, number}});
    INFO(transfer.name << "\n" << verify::to_text(report));
    for (const verify::Difference& difference : report.worst()) {
      CHECK(difference.passed() == (difference.tensor != parameter || difference.what != What::gradient));
    }
    named.insert(parameter);
  }
  CHECK(named.size() > 10);
}

TEST_CASE("a fault in an evaluation's reduction is reported as the evaluation's", "[verify]") {
  const VerifyCase checked = small_gpt();
  const partition::Partition partition = partition::split(checked.model.graph, data_parallel(2));
  const std::vector<Numbered> transfers =
      visible_transfers(checked.model, partition, {{"evaluate", checked.model.evaluation_rows}});
  REQUIRE_FALSE(transfers.empty());
  for (const auto& [number, transfer] : transfers) {
    const verify::Report report =
        verify::verify_interpreted(checked.workload(), partition, {.fault = Fault{Fault::Kind::scale, number}});
    INFO(transfer.name << "\n" << verify::to_text(report));
    for (const verify::Difference& difference : report.worst()) {
      CHECK(difference.passed() == (difference.what != What::evaluation));
    }
  }
}

TEST_CASE("a fault in a halo fails the verification of an iteration", "[verify]") {
  for (const ModelCase& model : model_cases()) {
    if (!model.name.starts_with("heat")) {
      continue;
    }
    const partition::Partition partition =
        partition::split(model.graph, plan_of({{"a", 2}, {"b", 2}}, {{"x", {"a"}}, {"y", {"b"}}}));
    const partition::Programs programs =
        partition::programs_of(model.graph, partition, {.device = device::Device::find("cpu")});
    const std::size_t transfers = programs.programs[0].transfers.size();
    CHECK(transfers == (model.name.starts_with("heat1d") ? 2 : 4));
    for (std::size_t number = 0; number < transfers; ++number) {
      for (const Fault::Kind kind : {Fault::Kind::omit, Fault::Kind::scale}) {
        INFO(model.name << ", transfer " << number << ", fault " << static_cast<int>(kind));
        CHECK_FALSE(
            verify::verify_interpreted({.graph = model.graph}, partition, {.steps = 4, .fault = Fault{kind, number}})
                .passed());
      }
    }
  }
}
