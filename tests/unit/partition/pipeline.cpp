// Pipelines written by hand. An error about a list of actions names the wrong action.

#include "core/partition/pipeline.h"

#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using plan::Action;

namespace {

/// Reads actions in the form in which they are printed: "0F0 0B0".
std::vector<Action> actions(const std::string& text) {
  constexpr std::string_view kinds = "FBIW";
  std::vector<Action> list;
  for (std::size_t i = 0; i + 2 < text.size(); i += 4) {
    list.push_back({static_cast<Action::Kind>(kinds.find(text[i + 1])), static_cast<std::uint32_t>(text[i] - '0'),
                    static_cast<std::uint32_t>(text[i + 2] - '0')});
  }
  return list;
}

/// A plan for an mlp of two layers, one on each of two stages.
plan::Plan two_stages(const std::string& first, const std::string& second) {
  plan::Plan plan = plan_of({{"pipe", 2}}, {});
  plan.pipeline = {.mesh_axis = "pipe", .chunks = {{0, 0}, {1, 1}}, .actions = {actions(first), actions(second)}};
  return plan;
}

std::string refusal(const plan::Plan& plan, std::int64_t microbatches = 2) {
  const ModelCase mlp = training_case("mlp", "mlp", {{"hidden", "3"}}, {.features = 2, .outputs = 2},
                                      {.batch = 4, .microbatches = microbatches});
  return error_of([&] { static_cast<void>(partition::split(mlp.graph, plan, mlp.microbatch_rows)); });
}

const std::string first = "0F0 0F1 0B0 0B1";
const std::string second = "1F0 1B0 1F1 1B1";

std::string told(std::int32_t stage, const std::string& action, const std::string& why) {
  return "2: strategy by hand: stage " + std::to_string(stage) + ", action " + action + ": " + why;
}

}  // namespace

TEST_CASE("lists that have every action once, in a possible order, are accepted", "[partition]") {
  CHECK(refusal(two_stages(first, second)) == "nothing");
  CHECK(refusal(two_stages("0F0 0F1 0I0 0I1 0W1 0W0", "1F0 1I0 1W0 1F1 1B1")) == "nothing");
  CHECK(refusal(two_stages("0F1 0F0 0B0 0B1", "1F0 1B0 1F1 1B1")) == "nothing");
  CHECK(refusal(two_stages("0F0 0B0", "1F0 1B0"), 1) == "nothing");
}

TEST_CASE("a missing action is reported", "[partition]") {
  CHECK(refusal(two_stages("0F0 0F1 0B0", second)) ==
        told(0, "0B1", "it is missing: add it behind the forward, or its two parts, I and W"));
  CHECK(refusal(two_stages("0F0 0B0", second)) == told(0, "0F1", "it is missing: add it"));
  CHECK(refusal(two_stages(first, "1F0 1B0 1F1 1I1")) == told(1, "1W1", "it is missing: add it"));
  CHECK(refusal(two_stages(first, "")) == told(1, "1F0", "it is missing: add it"));
}

TEST_CASE("an action listed twice is refused", "[partition]") {
  CHECK(refusal(two_stages("0F0 0F1 0F0 0B0 0B1", second)) == told(0, "0F0", "it has been done already"));
  CHECK(refusal(two_stages(first, "1F0 1B0 1F1 1B1 1B0")) == told(1, "1B0", "it has been done already"));
  CHECK(refusal(two_stages(first, "1F0 1B0 1I0 1F1 1B1")) == told(1, "1I0", "it has been done already"));
  CHECK(refusal(two_stages(first, "1F0 1I0 1B0 1F1 1B1")) == told(1, "1B0", "it has been done already"));
  CHECK(refusal(two_stages(first, "1F0 1B0 1W0 1F1 1B1")) == told(1, "1W0", "it has been done already"));
}

TEST_CASE("an action before its inputs is refused", "[partition]") {
  const std::string forward = "forward of this chunk and microbatch has to come before it";
  CHECK(refusal(two_stages("0F0 0B1 0F1 0B0", second)) == told(0, "0B1", forward));
  CHECK(refusal(two_stages(first, "1I0 1F0 1W0 1F1 1B1")) == told(1, "1I0", forward));
  CHECK(refusal(two_stages(first, "1F0 1W0 1I0 1F1 1B1")) ==
        told(1, "1W0", "the gradients of activations (I) have to come before those of parameters"));
}

TEST_CASE("chunks and microbatches that a stage does not have are refused", "[partition]") {
  CHECK(refusal(two_stages("0F0 1F1 0B0 0B1", second)) == told(0, "1F1", "chunk 1 is not on this stage"));
  CHECK(refusal(two_stages(first, "1F0 2B0 1F1 1B1")) == told(1, "2B0", "chunk 2 is not on this stage"));
  CHECK(refusal(two_stages("0F0 0F1 0F2 0B0 0B1 0B2", second)) ==
        told(0, "0F2", "a step has 2 microbatches, numbered from 0: see [data] microbatches"));
  CHECK(refusal(two_stages(first, second), 1) ==
        told(0, "0F1", "a step has 1 microbatches, numbered from 0: see [data] microbatches"));

  plan::Plan plan = two_stages("0F0 0F1 0B0 0B1", "");
  plan.pipeline.chunks = {{0, 0}};
  CHECK(refusal(plan) == "2: strategy by hand: stage 1 of the pipeline has no chunk");
}

TEST_CASE("lists that wait for each other are refused, with where each waits", "[partition]") {
  CHECK_THAT(refusal(two_stages("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")),
             Contains("2: the pipeline's actions wait for each other: stage 0 at 0B0 waits for ") &&
                 Contains(" from stage 1; stage 1 at 1F1 waits for ") && Contains(" from stage 0"));
  CHECK_THAT(refusal(two_stages("0F0 0F1 0B1 0B0", "1F0 1F1 1B0 1B1")), Contains("nothing"));
}

namespace {

/// The function of one of two stages for all microbatches of 2 rows: forward of all, then backward.
partition::SplitFunction all_microbatches(partition::StageId stage, std::int64_t microbatches) {
  const ModelCase mlp = training_case("mlp", "mlp", {{"hidden", "3"}}, {.features = 2, .outputs = 2},
                                      {.batch = 2 * microbatches, .microbatches = microbatches});
  const auto all = [&](const std::string& chunk, char kind) {
    std::string text;
    for (std::int64_t m = 0; m < microbatches; ++m) {
      text += chunk + kind + std::to_string(m) + " ";
    }
    return text;
  };
  const plan::Plan plan = two_stages(all("0", 'F') + all("0", 'B'), all("1", 'F') + all("1", 'B'));
  const partition::Partition partition = partition::split(mlp.graph, plan, mlp.microbatch_rows);
  const auto functions = partition::functions_of(mlp.graph, partition, stage);
  for (const partition::SplitFunction& function : functions->functions) {
    if (function.name == "micro") {
      return function;
    }
  }
  return {};
}

bool is_message(const std::optional<partition::Transition>& transition) {
  return transition && (transition->kind == partition::Transition::Kind::send ||
                        transition->kind == partition::Transition::Kind::receive);
}

struct Firsts {
  std::size_t values = 0;
  std::size_t nodes = 0;

  bool operator==(const Firsts&) const = default;
};

/// The values, and the nodes except messages, that stand for all that are alike.
Firsts firsts_of(const partition::SplitFunction& function) {
  Firsts firsts;
  for (const graph::ValueId v : function.values.ids()) {
    firsts.values += function.values[v].alike == v ? 1 : 0;
  }
  for (const graph::NodeId n : function.nodes.ids()) {
    firsts.nodes += function.nodes[n].alike == n && !is_message(function.nodes[n].transition) ? 1 : 0;
  }
  return firsts;
}

}  // namespace

TEST_CASE("nodes and values that all microbatches of a stage share are marked as alike", "[partition]") {
  for (const partition::StageId stage : {partition::StageId(0), partition::StageId(1)}) {
    const partition::SplitFunction function = all_microbatches(stage, 5);
    REQUIRE(function.call_rows.size() == 5);
    const auto first_of = [&](graph::ValueId id) { return function.values[id].alike; };
    for (const partition::SplitValue& value : function.values) {
      const partition::SplitValue& first = function.values[value.alike];
      CHECK(value.name == first.name);
      CHECK(value.type == first.type);
      CHECK(value.placement == first.placement);
    }
    for (const partition::SplitNode& node : function.nodes) {
      const partition::SplitNode& first = function.nodes[node.alike];
      CHECK(node.name == first.name);
      CHECK(node.op == first.op);
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        CHECK(first_of(node.inputs[i]) == first_of(first.inputs[i]));
      }
    }
    const Firsts firsts = firsts_of(function);
    CHECK(firsts == firsts_of(all_microbatches(stage, 2)));
    CHECK(firsts.values < function.values.size());
    CHECK(firsts.nodes < function.nodes.size());
  }
}

TEST_CASE("a mesh axis that splits the layers splits nothing else", "[partition]") {
  const std::string why = "2: strategy by hand: mesh axis pipe has the layers, and something else is split over it";
  plan::Plan plan = two_stages(first, second);
  plan.axes = {{"batch", {"pipe"}}};
  CHECK(refusal(plan) == why);
  plan = two_stages(first, second);
  plan.tensors = {{"layer_0/weights", plan::TensorRole::store, {{"pipe"}, {}}}};
  CHECK(refusal(plan) == why);
  plan = two_stages(first, second);
  plan.cut_points = {{"layer.0/residual", {{}, {"pipe"}}}};
  CHECK(refusal(plan) == why);
}
