// Transfers between stages in the device's memory: all ranks launch them in one order, in which no queue waits for
// another forever.

#include "core/partition/launch_order.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using partition::Launch;
using partition::StageId;
using plan::Action;

namespace {

using Launches = IdVector<StageId, std::vector<Launch>>;

/// A plan with one layer on each stage, whose microbatches alternate between forward and backward (Narayanan et al.
/// 2019). `interleaved`: two layers on each stage, in two chunks, and all forwards before all backwards.
plan::Plan pipeline(std::uint32_t stages, std::uint32_t microbatches, bool interleaved, std::uint32_t data = 1) {
  plan::Plan plan = plan_of({{"data", data}, {"pipe", stages}}, {{"batch", {"data"}}});
  plan.pipeline.mesh_axis = "pipe";
  const std::uint32_t chunks = interleaved ? 2 * stages : stages;
  for (std::uint32_t chunk = 0; chunk < chunks; ++chunk) {
    plan.pipeline.chunks.push_back({chunk, chunk % stages});
  }
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    std::vector<Action>& list = plan.pipeline.actions.emplace_back();
    if (interleaved) {
      for (std::uint32_t chunk = stage; chunk < chunks; chunk += stages) {
        for (std::uint32_t m = 0; m < microbatches; ++m) {
          list.push_back({Action::Kind::forward, chunk, m});
        }
      }
      for (std::uint32_t chunk = stage + stages;; chunk = stage) {
        for (std::uint32_t m = 0; m < microbatches; ++m) {
          list.push_back({Action::Kind::backward, chunk, m});
        }
        if (chunk == stage) {
          break;
        }
      }
      continue;
    }
    const std::uint32_t ahead = std::min(stages - stage - 1, microbatches);
    for (std::uint32_t m = 0; m < microbatches + ahead; ++m) {
      if (m < microbatches) {
        list.push_back({Action::Kind::forward, stage, m});
      }
      if (m >= ahead) {
        list.push_back({Action::Kind::backward, stage, m - ahead});
      }
    }
  }
  return plan;
}

/// Training with a layer for each chunk, clipped gradients and a tensor that the first and the last stage share.
ModelCase tied_gpt(const plan::Plan& plan, std::int64_t microbatches) {
  return training_case(
      "gpt tied", "gpt",
      {{"layers", std::to_string(plan.pipeline.chunks.size())}, {"heads", "1"}, {"width", "4"}, {"context", "3"}},
      {.vocab = 5},
      {.batch = 2 * microbatches,
       .microbatches = microbatches,
       .eval_rows = 2,
       .eval_samples = 4,
       .optimizer = {.clip = 1}});
}

/// The launches of each stage in each program.
std::vector<std::pair<std::string, Launches>> launches(const plan::Plan& plan, std::int64_t microbatches) {
  const ModelCase gpt = tied_gpt(plan, microbatches);
  const partition::Partition partition = partition::split(gpt.graph, plan, gpt.microbatch_rows, gpt.evaluation_rows);
  partition::LaunchOrders orders;
  std::vector<std::pair<std::string, Launches>> all;
  const std::int64_t stages = plan.mesh[1].size;
  for (std::int64_t rank = 0; rank < plan.ranks(); ++rank) {
    const StageId stage(static_cast<std::size_t>(rank % stages));
    const partition::Programs programs = partition::programs_of(gpt.graph, partition,
                                                                {.device = device::Device::find("unmapped"),
                                                                 .rank = rank,
                                                                 .moves_device_memory = {true, true},
                                                                 .agreements = true});
    orders.add(stage, programs);
    for (std::size_t p = 0; rank < stages && p < programs.programs.size(); ++p) {
      if (rank == 0) {
        all.emplace_back(programs.programs[p].function, Launches(static_cast<std::size_t>(stages)));
      }
      all[p].second[stage] = partition::launches_of(programs.programs[p]);
    }
  }
  orders.check(partition.pipeline);
  return all;
}

Launch message(const std::string& name, std::size_t from, std::size_t to, bool sends) {
  return {.name = name,
          .axis = mesh::AxisId(0),
          .collective = sends ? partition::Collective::send : partition::Collective::receive,
          .link = {StageId(from), StageId(to), from > to}};
}

std::string refusal(const Launches& stages) {
  return error_of([&] { partition::require_one_order("micro", stages, mesh::AxisId(0)); });
}

}  // namespace

TEST_CASE("stages launch their transfers in one order, whatever their schedule", "[partition]") {
  for (const std::uint32_t stages : {2U, 3U, 4U}) {
    for (const std::uint32_t microbatches : {1U, 2U, 5U, 8U}) {
      for (const bool interleaved : {false, true}) {
        for (const std::uint32_t data : {1U, 2U}) {
          INFO(stages << " stages, " << microbatches << " microbatches, " << interleaved << ", data " << data);
          const auto all = launches(pipeline(stages, microbatches, interleaved, data), microbatches);
          CHECK(all.front().first == "micro");
          CHECK(all.front().second[StageId(0)].size() > std::size_t{2} * microbatches);
        }
      }
    }
  }
}

TEST_CASE("a stage receives the first message of a peer before it sends what the peer receives later", "[partition]") {
  const auto all = launches(pipeline(2, 3, false), 3);
  const auto order = [&](std::size_t stage) {
    std::string text;
    for (const Launch& launch : all.front().second[StageId(stage)]) {
      text += launch.link.from.exists() ? (launch.collective == partition::Collective::send ? "s" : "r") : "";
    }
    return text;
  };
  CHECK(order(0) == "ssrsrrr");  // the last is the gradient of the tensor that both stages have
  CHECK(order(1) == "rrsrsss");  // it makes its messages in the order rsrsrss, and its first would wait for ever
}

TEST_CASE("only messages and sums of stages in the device's memory have places in the launch order", "[partition]") {
  const plan::Plan plan = pipeline(2, 3, false);
  const ModelCase gpt = tied_gpt(plan, 3);
  const partition::Partition partition = partition::split(gpt.graph, plan, gpt.microbatch_rows, gpt.evaluation_rows);
  for (const auto memory : {partition::MessageMemory::host, partition::MessageMemory::device}) {
    std::set<partition::Transition::Kind> seen;
    const auto stage = partition::functions_of(gpt.graph, partition, StageId(1), memory);
    for (const partition::SplitFunction& function : stage->functions) {
      for (const partition::SplitNode& node : function.nodes) {
        if (node.transition && node.transition->axis == partition.pipeline.axis) {
          INFO(function.name << ": " << node.name);
          CHECK(node.transition->place.has_value() == (memory == partition::MessageMemory::device));
          seen.insert(node.transition->kind);
        }
      }
    }
    CHECK(seen.size() == 3);
  }
  for (const partition::Link& link : partition::links_of(partition)) {
    CHECK(link.from.exists());
  }
}

TEST_CASE("a sum of stages that only a state reads is bucketed, unless it is in the device's memory", "[partition]") {
  partition::SplitFunction function;
  for (std::size_t v = 0; v < 3; ++v) {
    partition::SplitValue value;
    value.name = std::to_string(v);
    (void)function.values.push_back(std::move(value));
  }
  const graph::ValueId summed(1);
  const graph::ValueId computed(2);
  partition::SplitNode sum;
  sum.inputs = {graph::ValueId(0)};
  sum.outputs = {summed};
  sum.transition = {.kind = partition::Transition::Kind::all_reduce, .axis = mesh::AxisId(0)};
  (void)function.nodes.push_back(std::move(sum));
  partition::SplitNode other;
  other.outputs = {computed};
  (void)function.nodes.push_back(std::move(other));
  function.writes.push_back({.state = graph::StateId(0), .value = summed});
  using Kinds = std::vector<partition::Step::Kind>;
  using Kind = partition::Step::Kind;
  const auto kinds = [&] {
    Kinds all;
    for (const partition::Step& step : partition::schedule(function, {{{"pipe", 2}}}, 100)) {
      all.push_back(step.kind);
    }
    return all;
  };
  CHECK(kinds() == Kinds{Kind::compute, Kind::start, Kind::wait});
  function.nodes[graph::NodeId(0)].transition->place = 0;
  CHECK(kinds() == Kinds{Kind::start, Kind::wait, Kind::compute});
}

TEST_CASE("launch orders that make stages wait for each other are refused, with where each waits", "[partition]") {
  CHECK(refusal({{message("x", 0, 1, true), message("g", 1, 0, false)},
                 {message("x", 0, 1, false), message("g", 1, 0, true)}}) == "nothing");
  CHECK_THAT(refusal({{message("x", 0, 1, true), message("y", 0, 1, true), message("g", 1, 0, false)},
                      {message("x", 0, 1, false), message("g", 1, 0, true), message("y", 0, 1, false)}}),
             Contains("function micro: the stages would start their transfers in the device's memory in different "
                      "orders, and wait for each other; stage 0 is at the send of y; stage 1 is at the send of g"));
  const Launch sum{.name = "loss", .axis = mesh::AxisId(0)};
  CHECK(refusal({{message("x", 0, 1, true), sum}, {message("x", 0, 1, false), sum}}) == "nothing");
  CHECK_THAT(refusal({{message("x", 0, 1, true), sum}, {sum, message("x", 0, 1, false)}}),
             Contains("stage 0 is at the send of x; stage 1 is at the all_reduce of loss"));
  CHECK_THAT(refusal({{message("x", 0, 1, true)}, {}}), Contains("stage 0 is at the send of x"));

  // Launches are matched by all that they say, not only by their groups.
  const Launch other{.name = "norm", .axis = mesh::AxisId(0)};
  CHECK_THAT(refusal({{sum, other}, {other, sum}}),
             Contains("stage 0 is at the all_reduce of loss; stage 1 is at the all_reduce of norm"));
  CHECK_THAT(refusal({{message("x", 0, 1, true), message("y", 0, 1, true)},
                      {message("y", 0, 1, false), message("x", 0, 1, false)}}),
             Contains("stage 0 is at the send of x; stage 1 is at the receive of y"));
  Launch largest = sum;
  largest.reduction = shardrun::Reduction::max;
  CHECK(refusal({{sum}, {largest}}) != "nothing");
  Launch wide = sum;
  wide.dtype = graph::DType::f64;
  CHECK(refusal({{sum}, {wide}}) != "nothing");
}

TEST_CASE("states that several stages sum are summed at the end of a function", "[partition]") {
  const auto all = launches(pipeline(2, 3, false, 2), 3);
  for (const std::vector<Launch>& of_stage : all.front().second) {
    const auto first = std::ranges::find(of_stage, "loss", &Launch::name);
    REQUIRE(first != of_stage.end());
    CHECK(first->axis == mesh::AxisId(0));
    CHECK(std::none_of(first, of_stage.end(), [](const Launch& each) { return each.link.from.exists(); }));
  }
}

TEST_CASE("ranks of a stage that launch in different orders are refused", "[partition]") {
  const auto programs = [](std::int64_t rank, const std::vector<std::string>& names) {
    partition::Programs made{.rank = rank};
    partition::Program& program = made.programs.emplace_back();
    program.function = "micro";
    for (const std::string& name : names) {
      program.instructions.push_back({.kind = partition::Instruction::Kind::start,
                                      .transfer = program.transfers.push_back({.name = name, .is_direct = true})});
    }
    return made;
  };
  partition::LaunchOrders orders;
  orders.add(StageId(0), programs(0, {"a", "b"}));
  orders.add(StageId(0), programs(1, {"a", "b"}));
  CHECK_THAT(
      error_of([&] {
        orders.add(StageId(0), programs(2, {"b", "a"}));
      }),
      Contains("function micro: rank 2 starts its transfers in the device's memory in another order than rank 0"));
}
