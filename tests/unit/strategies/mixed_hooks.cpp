// Hooks in mixed precision: they are given float32, and parameters are bfloat16.

#include <functional>

#include "core/compile/compile.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/unit/strategies/hooked.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using Catch::StartsWith;
using graph::StateId;
using graph::StateKind;

namespace {

VerifyCase mixed_gpt(graph::DType gradients, const char* tied = "true") {
  return VerifyCase(training_case(
      "gpt", "gpt", {{"layers", "2"}, {"heads", "2"}, {"width", "8"}, {"context", "6"}, {"tied", tied}}, {.vocab = 11},
      {.batch = 7,
       .microbatches = 3,
       .eval_rows = 3,
       .eval_samples = 5,
       .mixed = gradients,
       .optimizer = {.clip = 0.5}}));
}

std::vector<float> rounded(const std::vector<float>& values) {
  std::vector<double> made(values.begin(), values.end());
  device::round_elements(graph::DType::bf16, made);
  return {made.begin(), made.end()};
}

/// Checks after each of 4 steps, on every rank, that each parameter is the rounding of its master, and that the rank
/// has touched the pages that were planned. `at_end`: called at the end of each step.
void check_rounded(const Split& split, const std::function<void(std::int64_t, runtime::Interpreter&)>& at_end) {
  const graph::Graph& graph = split.checked.model.graph;
  split.interpret(4, [&](std::int64_t step, verify::Moment moment, runtime::Interpreter& ranks) {
    if (moment != verify::Moment::end) {
      return;
    }
    for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
      bool lost = false;
      for (const StateId state : states_of(split, StateKind::parameter)) {
        INFO("step " << step << ", rank " << rank << ", " << graph.states[state].name);
        const std::vector<float> master = values_of(ranks, rank, graph.master_of(state));
        CHECK(values_of(ranks, rank, state) == rounded(master));
        lost = lost || rounded(master) != master;
      }
      CHECK(lost);
      CHECK(ranks.rank(rank).arena()->touched_bytes() == ranks.programs(rank).memory.peak);
    }
    at_end(step, ranks);
  });
}

}  // namespace

TEST_CASE("in mixed precision hooks that sum gradients agree with the reference", "[strategies]") {
  const VerifyCase model = mixed_gpt(graph::DType::f32);
  for (const char* mode : {"sum", "scatter", "swap"}) {
    check_agrees(model, hooked({{"data", 3}}, mode));
    check_agrees(model, hooked({{"pipe", 2}, {"data", 2}, {"model", 2}}, mode));
  }
  check_agrees(model, {"topk", ranks(3), {{"ratio", 1.0}}});
}

TEST_CASE("in mixed precision replicas average their master weights", "[strategies]") {
  const Split split(mixed_gpt(graph::DType::f32), {"local_sgd", ranks(3), {{"every", std::int64_t{2}}}});
  check_rounded(split, [&](std::int64_t step, runtime::Interpreter& ranks) {
    for (const StateId state : states_of(split, StateKind::parameter)) {
      const StateId master = split.checked.model.graph.master_of(state);
      INFO("step " << step << ", " << split.checked.model.graph.states[state].name);
      CHECK((values_of(ranks, 1, master) == values_of(ranks, 0, master)) == (step % 2 == 1));
    }
  });
}

TEST_CASE("in mixed precision a hook after a step changes master weights, and parameters are rounded from them",
          "[strategies]") {
  const auto nothing = [](std::int64_t, runtime::Interpreter&) {};
  check_rounded(Split(mixed_gpt(graph::DType::f32), hooked({{"data", 2}, {"model", 2}}, "choose")), nothing);
  check_rounded(Split(mixed_gpt(graph::DType::f32, "false"), hooked({{"pipe", 2}, {"data", 2}}, "choose")), nothing);
  check_rounded(Split(mixed_gpt(graph::DType::f32), hooked({{"data", 1}, {"model", 2}}, "choose")), nothing);
}

TEST_CASE("in mixed precision gradients and states of hooks are float32", "[strategies]") {
  const Split topk(mixed_gpt(graph::DType::f32), {"topk", ranks(3), {{"ratio", 0.05}}});
  check_rounded(topk, [&](std::int64_t, runtime::Interpreter& ranks) {
    for (const StateId state : states_of(topk, StateKind::parameter)) {
      CHECK(values_of(ranks, 1, state) == values_of(ranks, 0, state));
    }
  });
  const Split count(mixed_gpt(graph::DType::f32), hooked({{"data", 2}, {"model", 2}}, "count"));
  const graph::Graph& graph = count.checked.model.graph;
  count.interpret(1, [&](std::int64_t, verify::Moment moment, runtime::Interpreter& ranks) {
    for (const StateId state : states_of(count, StateKind::hook_state)) {
      const graph::State& kept = graph.states[state];
      for (std::size_t rank = 0; rank < ranks.ranks() && moment == verify::Moment::begin; ++rank) {
        INFO(kept.name << ", rank " << rank);
        CHECK(kept.type.dtype == graph::DType::f32);
        CHECK((values_of(ranks, rank, state) == values_of(ranks, rank, graph.master_of(kept.of_parameter))) ==
              kept.name.starts_with("anchor/"));
      }
    }
  });
}

TEST_CASE("in mixed precision hooks for tensors that are not float32 are refused with the reason", "[strategies]") {
  const VerifyCase half = mixed_gpt(graph::DType::bf16);
  const auto gradients = [](const char* strategy) {
    return Contains(std::string("strategy ") + strategy +
                    ": the hook sync_gradients is given float32 gradients, and "
                    "gradients/embedding/tokens is bf16: set [train] gradients = float32");
  };
  CHECK_THAT(refusal(half, {"topk", ranks(2)}), gradients("topk"));
  CHECK_THAT(refusal(half, {"local_sgd", ranks(2)}), gradients("local_sgd"));
  CHECK_THAT(refusal(half, hooked({{"data", 2}}, "sum", {{"only", "*/tokens"}})), gradients("hooked"));
  const VerifyCase mixed = mixed_gpt(graph::DType::f32);
  CHECK_THAT(refusal(mixed, hooked({{"data", 2}}, "after zero1")),
             Contains("the hook after_step is given float32 tensors, which with [train] precision = mixed are the "
                      "master weights, and embedding/tokens is stored as [- | -], its optimizer states as ") &&
                 Contains(": place both alike, or set [train] precision = float32"));
  CHECK_THAT(refusal(mixed, hooked({{"pipe", 2}, {"data", 2}}, "choose")),
             Contains("embedding/tokens is on several stages of the pipeline, its optimizer states on one: give the "
                      "hook other tensors, or set [train] precision = float32"));
  for (const Choice& choice : {hooked({{"data", 2}}, "after zero1"), hooked({{"pipe", 2}, {"data", 2}}, "choose")}) {
    CHECK(refusal(plain_gpt(), choice) == "nothing");
  }
}

TEST_CASE("a refusal in mixed precision has the place of the setting that it names", "[strategies]") {
  const auto refused = [](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"plugins.path=" SHARDRUN_HOOKED_PLUGINS ":" SHARDRUN_PLUGINS, "job.ranks=2",
                                     "train.precision=mixed"});
    const TemporaryFolder folder;
    return error_of([&] { (void)compile::compile(text_job_in(folder, settings)); });
  };
  CHECK_THAT(refused({"job.strategy=topk", "train.gradients=bfloat16"}),
             StartsWith("2: --set train.gradients: strategy topk: the hook sync_gradients is given float32 gradients"));
  CHECK_THAT(refused({"job.strategy=hooked", "strategy.mode=after zero1", "mesh.data=2"}),
             StartsWith("2: --set train.precision: the hook after_step is given float32 tensors"));
}
