// The time of a step, computed by hand: what costs add up to, what overlaps, and what stages wait for.

#include "core/forecast/predict.h"

#include <numeric>
#include <shardrun/sdk/strategy/pipeline.hpp>

#include "core/forecast/timeline.h"
#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using compile::AxisRate;
using forecast::Prediction;
using forecast::RankStep;
using forecast::StepCosts;
using mesh::AxisId;
using partition::Collective;
using partition::Instruction;
using partition::Program;
using partition::Programs;
using partition::StageId;
using partition::Transfer;
using partition::TransferId;
using Kind = Instruction::Kind;

namespace {

const graph::Op matmul{.name = "matmul"};

Instruction instruction(Kind kind, std::int32_t transfer = -1) {
  Instruction made{.kind = kind, .op = &matmul, .name = "any"};
  made.transfer = TransferId(transfer);
  return made;
}

partition::Link link_of(std::int32_t from, std::int32_t to, bool backward = false) {
  return {StageId(from), StageId(to), backward};
}

Transfer all_reduce(int axis, std::int64_t elements) {
  return {.name = "sum",
          .collective = Collective::all_reduce,
          .axis = AxisId(axis),
          .send = {.elements = elements},
          .recv = {.elements = elements}};
}

Programs on_mesh(IdVector<AxisId, mesh::Axis> axes, Program program) {
  return {.mesh = {std::move(axes)}, .programs = {std::move(program)}};
}

/// The prediction for a rank alone. `seconds`: the cost of each instruction.
Prediction alone(const Programs& programs, std::vector<double> seconds, compile::AxisRates axes) {
  return forecast::predict({{&programs, {0}}}, {}, {.seconds = {std::move(seconds)}, .axes = std::move(axes)});
}

/// The rate with which a transfer of 8 elements takes this long: each of two ranks sends 32 bytes.
AxisRate taking(double seconds) { return {.bandwidth = 32 / seconds}; }

}  // namespace

TEST_CASE("a single rank takes the sum of its instructions' costs", "[predict]") {
  const Programs programs =
      on_mesh({}, {.function = "micro", .instructions = {instruction(Kind::compute), instruction(Kind::move)}});
  const Prediction step = forecast::predict({{&programs, {0, 0}}}, {}, {.seconds = {{1, 2, 4, 8}}});
  CHECK(step.seconds == 15);
  CHECK(step.stages.at(0).compute == 15);
  CHECK(step.stages.at(0).exposed == 0);
  CHECK(step.stages.at(0).waiting == 0);
}

TEST_CASE("an instruction takes the longer of its time for FLOPs and its time for bytes", "[predict]") {
  Program program{.function = "micro"};
  for (const std::uint64_t bytes : {100U, 60U}) {
    program.buffers.push_back(
        {.type = {graph::DType::f32, {static_cast<std::int64_t>(bytes) / 4}, {""}}, .bytes = bytes});
  }
  Instruction compute = instruction(Kind::compute);
  compute.inputs = {partition::BufferId(0)};
  compute.outputs = {partition::BufferId(1)};
  compute.flops = 1000;
  const forecast::ExecutedInstruction at{&program, &compute};
  CHECK(forecast::compute_seconds(at, {.flops = 100, .memory_bandwidth = 100}) == 10);
  CHECK(forecast::compute_seconds(at, {.flops = 1000, .memory_bandwidth = 10}) == 16);
  compute.accumulate = partition::Accumulate::always;
  CHECK(forecast::compute_seconds(at, {.flops = 1000, .memory_bandwidth = 10}) == 22);

  Instruction move = instruction(Kind::move);
  move.inputs = {partition::BufferId(0)};
  move.outputs = {partition::BufferId(1)};
  move.copies = {{.shape = {3, 2}}, {.shape = {1}}};
  CHECK(forecast::compute_seconds({&program, &move}, {.flops = 1, .memory_bandwidth = 4}) == 14);
}

TEST_CASE("a transfer takes its messages and the bytes of a ring", "[predict]") {
  const Programs programs = on_mesh({{"data", 4}}, {});
  const auto seconds = [&](const Transfer& transfer) {
    return forecast::transfer_seconds(transfer, programs, {.bandwidth = 2, .latency = 100});
  };
  CHECK(seconds(all_reduce(0, 8)) == 6 * 100 + 2 * 3 * 8.0 / 4 * 4 / 2);
  Transfer gather{.collective = Collective::all_gather,
                  .axis = AxisId(0),
                  .send = {.elements = 2},
                  .recv = {.elements = 8},
                  .recv_counts = {2, 2, 2, 2}};
  CHECK(seconds(gather) == 3 * 100 + 3 * 2 * 4.0 / 2);
  gather.collective = Collective::reduce_scatter;
  gather.send.elements = 8;
  CHECK(seconds(gather) == 3 * 100 + 3 * 2 * 4.0 / 2);
  CHECK(seconds({.collective = Collective::all_to_all,
                 .axis = AxisId(0),
                 .send = {.elements = 5},
                 .send_counts = {2, 3, 0, 0},
                 .recv_counts = {2, 0, 0, 4}}) == 2 * 100 + 3 * 4.0 / 2);
  CHECK(seconds({.collective = Collective::send, .axis = AxisId(0), .send = {.elements = 5}, .link = link_of(0, 1)}) ==
        100 + 5 * 4.0 / 2);
}

TEST_CASE("a transfer is hidden while the rank computes, and exposed for the rest", "[predict]") {
  const Programs programs =
      on_mesh({{"data", 2}},
              {.function = "micro",
               .instructions = {instruction(Kind::start, 0), instruction(Kind::compute), instruction(Kind::wait, 0)},
               .transfers = {all_reduce(0, 8)}});
  const Prediction hidden = alone(programs, {0, 5, 0}, {taking(3)});
  CHECK(hidden.seconds == 5);
  CHECK(hidden.stages[0].exposed == 0);
  CHECK(hidden.stages[0].hidden == 3);

  const Prediction longer = alone(programs, {0, 5, 0}, {taking(8)});
  CHECK(longer.seconds == 8);
  CHECK(longer.stages[0].exposed == 3);
  CHECK(longer.stages[0].hidden == 5);

  const Prediction measured = alone(programs, {0.5, 5, 2}, {std::nullopt});
  CHECK(measured.seconds == 7.5);
  CHECK(measured.stages[0].exposed == 2.5);
}

TEST_CASE("an axis moves one transfer at a time, and two axes move at once", "[predict]") {
  const auto seconds = [](int second) {
    const Programs programs =
        on_mesh({{"data", 2}, {"model", 2}}, {.function = "micro",
                                              .instructions = {instruction(Kind::start, 0), instruction(Kind::start, 1),
                                                               instruction(Kind::wait, 1), instruction(Kind::wait, 0)},
                                              .transfers = {all_reduce(0, 8), all_reduce(second, 8)}});
    return alone(programs, {0, 0, 0, 0}, {taking(3), taking(4)}).seconds;
  };
  CHECK(seconds(0) == 6);
  CHECK(seconds(1) == 4);
}

TEST_CASE("the hidden time of overlapping transfers is counted once", "[predict]") {
  const auto step = [](int second) {
    const Programs programs =
        on_mesh({{"data", 2}, {"model", 2}},
                {.function = "micro",
                 .instructions = {instruction(Kind::compute), instruction(Kind::start, 0), instruction(Kind::start, 1),
                                  instruction(Kind::compute), instruction(Kind::wait, 1), instruction(Kind::wait, 0)},
                 .transfers = {all_reduce(0, 8), all_reduce(second, 8)}});
    return alone(programs, {10, 0, 0, 5, 0, 0}, {taking(3), taking(4)});
  };
  const Prediction at_a_time = step(1);
  CHECK(at_a_time.seconds == 15);
  CHECK(at_a_time.stages[0].hidden == 4);
  const Prediction one_after_the_other = step(0);
  CHECK(one_after_the_other.seconds == 16);
  CHECK(one_after_the_other.stages[0].exposed == 1);
  CHECK(one_after_the_other.stages[0].hidden == 5);
}

namespace {

/// The prediction for stages of a pipeline with transfers of 8 elements. `seconds`: the costs of each
/// stage's instructions.
Prediction stages_alone(std::vector<Program> programs, std::vector<std::vector<double>> seconds, AxisRate rate) {
  std::vector<Programs> all;
  for (Program& program : programs) {
    all.push_back(on_mesh({{"pipe", static_cast<std::int64_t>(programs.size())}}, std::move(program)));
    all.back().rank = static_cast<std::int64_t>(all.size()) - 1;
  }
  std::vector<RankStep> ranks;
  for (const Programs& each : all) {
    ranks.push_back({&each, {0}});
  }
  // The stages' instructions belong to no action.
  const partition::Pipeline pipeline{.axis = AxisId(0),
                                     .actions = IdVector<StageId, std::vector<plan::Action>>(all.size())};
  return forecast::predict(ranks, pipeline, {.seconds = std::move(seconds), .axes = {rate}});
}

Transfer message(Collective collective, partition::Link link) {
  return {.name = "message",
          .collective = collective,
          .axis = AxisId(0),
          .send = {.elements = collective == Collective::send ? 8 : 0},
          .recv = {.elements = collective == Collective::send ? 0 : 8},
          .link = link};
}

}  // namespace

TEST_CASE("a stage's sends go one after the other, and receives overlap with them", "[predict]") {
  const partition::Link forward = link_of(1, 2);
  const partition::Link backward = link_of(1, 0, true);
  const partition::Link up = link_of(0, 1);
  const Program outer{.function = "micro",
                      .instructions = {instruction(Kind::start, 0), instruction(Kind::start, 1),
                                       instruction(Kind::wait, 0), instruction(Kind::wait, 1)},
                      .transfers = {message(Collective::send, up), message(Collective::receive, backward)}};
  const Program middle{
      .function = "micro",
      .instructions = {instruction(Kind::start, 0), instruction(Kind::start, 1), instruction(Kind::start, 2),
                       instruction(Kind::wait, 2), instruction(Kind::wait, 1), instruction(Kind::wait, 0)},
      .transfers = {message(Collective::send, forward), message(Collective::send, backward),
                    message(Collective::receive, up)}};
  const Program last{.function = "micro",
                     .instructions = {instruction(Kind::start, 0), instruction(Kind::wait, 0)},
                     .transfers = {message(Collective::receive, forward)}};
  const Prediction step = stages_alone({outer, middle, last}, {{0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {0, 0}}, taking(3));
  CHECK(step.seconds == 6);
  CHECK(step.stages[0].exposed == 6);
  CHECK(step.stages[2].exposed == 3);
  CHECK(step.stages[2].waiting == 3);
}

TEST_CASE("a message in the device's memory begins only when its receive begins", "[predict]") {
  for (const bool is_direct : {false, true}) {
    Transfer sent = message(Collective::send, link_of(0, 1));
    Transfer received = message(Collective::receive, link_of(0, 1));
    sent.is_direct = is_direct;
    received.is_direct = is_direct;
    const Program sends{.function = "micro",
                        .instructions = {instruction(Kind::start, 0), instruction(Kind::wait, 0)},
                        .transfers = {sent}};
    const Program receives{
        .function = "micro",
        .instructions = {instruction(Kind::compute), instruction(Kind::start, 0), instruction(Kind::wait, 0)},
        .transfers = {received}};
    const Prediction step = stages_alone({sends, receives}, {{0, 0}, {5, 0, 0}}, taking(3));
    CHECK(step.seconds == (is_direct ? 5 + 3 : 5));
    CHECK(step.stages[0].exposed == 3);
    CHECK(step.stages[0].waiting == (is_direct ? 5 : 2));  // if not direct: until the other stage has ended the step
    CHECK(step.stages[1].exposed == (is_direct ? 3 : 0));
  }
}

TEST_CASE("transfers of stages go in the order in which they could begin", "[predict]") {
  const partition::Link link = link_of(0, 1);
  const Program first{
      .function = "micro",
      .instructions = {instruction(Kind::start, 0), instruction(Kind::compute), instruction(Kind::start, 1),
                       instruction(Kind::wait, 0), instruction(Kind::wait, 1)},
      .transfers = {all_reduce(0, 8), message(Collective::send, link)}};
  const Program second{
      .function = "micro",
      .instructions = {instruction(Kind::compute), instruction(Kind::start, 0), instruction(Kind::start, 1),
                       instruction(Kind::wait, 0), instruction(Kind::wait, 1)},
      .transfers = {all_reduce(0, 8), message(Collective::receive, link)}};
  // The sum takes from 5 to 8. The message, which is sent at 7, comes after it.
  const Prediction step = stages_alone({first, second}, {{0, 7, 0, 0, 0}, {5, 0, 0, 0, 0}}, taking(3));
  CHECK(step.seconds == 11);
  CHECK(step.stages[0].hidden == 2);
  CHECK(step.stages[0].exposed == 4);
  CHECK(step.stages[1].hidden == 0);
  CHECK(step.stages[1].exposed == 6);
}

TEST_CASE("with only latency, two data-parallel ranks take two messages for each bucket", "[predict]") {
  const ModelCase mlp = training_case("mlp", "mlp", {{"hidden", "3"}}, {.features = 2, .outputs = 2}, {.batch = 4});
  const partition::Partition partition = partition::split(mlp.graph, data_parallel(2, 20), mlp.microbatch_rows);
  const Programs programs =
      partition::programs_of(mlp.graph, partition, {.device = device::Device::find("cpu"), .rank = 0});
  RankStep step{&programs, programs.find_calls("micro", mlp.microbatch_rows)};
  const std::vector<forecast::ExecutedInstruction> instructions = forecast::instructions_of(step);
  const std::size_t transfers = programs.programs[step.executed[0]].transfers.size();
  REQUIRE(transfers > 1);
  constexpr double latency = 1000;
  const Prediction predicted = forecast::predict({step}, {},
                                                 {.seconds = {std::vector<double>(instructions.size(), 0)},
                                                  .axes = {AxisRate{.bandwidth = 1e24, .latency = latency}}});
  CHECK(predicted.seconds == Approx(static_cast<double>(transfers) * 2 * latency));
}

namespace {

constexpr std::uint32_t stage_count = 4;
constexpr std::uint32_t microbatch_count = 8;

using plan::Action;

Action in_plugin_words(const sdk::Action& action) {
  return {static_cast<Action::Kind>(static_cast<std::uint32_t>(action.kind) - SR_ACTION_FORWARD), action.chunk,
          action.microbatch};
}

partition::Pipeline alternating(std::uint32_t stages, std::uint32_t microbatches) {
  partition::Pipeline made{.axis = AxisId(0)};
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    made.chunks.push_back({stage, stage});
    std::vector<Action> list;
    for (const sdk::Action& action : sdk::one_forward_one_backward(stage, stages, 1, microbatches)) {
      list.push_back(in_plugin_words(action));
    }
    made.actions.push_back(std::move(list));
  }
  return made;
}

/// A stage that receives, computes and sends in each of its actions. It waits for its sends at the end.
Programs stage_of(const partition::Pipeline& pipeline, std::int32_t stage) {
  const auto stages = static_cast<std::int32_t>(pipeline.actions.size());
  Program program{.function = "micro"};
  const auto add = [&](Collective collective, partition::Link link, bool waits) {
    const bool sends = collective == Collective::send;
    const TransferId id = program.transfers.push_back({.name = "message",
                                                       .collective = collective,
                                                       .axis = AxisId(0),
                                                       .send = {.elements = sends ? 8 : 0},
                                                       .recv = {.elements = sends ? 0 : 8},
                                                       .link = link});
    program.instructions.push_back(instruction(Kind::start, id.number()));
    if (waits) {
      program.instructions.push_back(instruction(Kind::wait, id.number()));
    }
  };
  const std::vector<Action>& actions = pipeline.actions[StageId(stage)];
  for (std::size_t a = 0; a < actions.size(); ++a) {
    const Action& action = actions[a];
    const bool forward = action.kind == Action::Kind::forward;
    const std::int32_t from = forward ? stage - 1 : stage + 1;
    const std::int32_t to = forward ? stage + 1 : stage - 1;
    if (from >= 0 && from < stages) {
      add(Collective::receive, link_of(from, stage, !forward), true);
    }
    Instruction compute = instruction(Kind::compute);
    compute.layer = stage;
    compute.call = action.microbatch;
    compute.action = partition::ActionId(a);
    compute.phase = forward ? graph::Phase::forward : graph::Phase::backward_input;
    program.instructions.push_back(compute);
    if (to >= 0 && to < stages) {
      add(Collective::send, link_of(stage, to, !forward), false);
    }
  }
  for (const TransferId id : program.transfers.ids()) {
    if (program.transfers[id].collective == Collective::send) {
      program.instructions.push_back(instruction(Kind::wait, id.number()));
    }
  }
  Programs programs = on_mesh({{"pipe", stages}}, std::move(program));
  programs.rank = stage;
  return programs;
}

/// The prediction with costs 1 for forward and 2 for backward. `waits`: the cost of each wait if the axis has no rate.
Prediction predict_pipeline(const partition::Pipeline& pipeline, const std::optional<AxisRate>& rate,
                            double waits = 0) {
  std::vector<Programs> programs;
  for (const StageId stage : pipeline.actions.ids()) {
    programs.push_back(stage_of(pipeline, stage.number()));
  }
  StepCosts costs{.axes = {rate}};
  std::vector<RankStep> ranks;
  for (const Programs& each : programs) {
    ranks.push_back({&each, {0}});
    std::vector<double>& seconds = costs.seconds.emplace_back();
    for (const Instruction& at : each.programs[0].instructions) {
      const double compute = at.phase == graph::Phase::forward ? 1 : 2;
      seconds.push_back(at.kind == Kind::compute ? compute : at.kind == Kind::wait ? waits : 0);
    }
  }
  return forecast::predict(ranks, pipeline, costs);
}

}  // namespace

TEST_CASE("stages of equal cost wait as long as the bubble of the pipeline", "[predict]") {
  const partition::Pipeline pipeline = alternating(stage_count, microbatch_count);
  const Prediction step = predict_pipeline(pipeline, AxisRate{.bandwidth = 1e24});
  const forecast::Timeline timeline = forecast::timeline_of(pipeline, forecast::unit_cost);
  CHECK(step.seconds == Approx(timeline.end));
  for (const StageId stage : pipeline.actions.ids()) {
    const forecast::StagePrediction& spent = step.stages[stage.index()];
    CHECK(spent.waiting / spent.compute == Approx(timeline.bubble(stage)));
    CHECK(spent.compute + spent.exposed + spent.waiting == Approx(step.seconds));
    for (const Action& action : pipeline.actions[stage]) {
      CHECK(step.cost_of(action) == forecast::unit_cost(action));
    }
  }
}

TEST_CASE("a stage waits for its sender and then for the message", "[predict]") {
  for (const bool measured : {false, true}) {
    const partition::Pipeline pipeline = alternating(2, 1);
    const Prediction step =
        measured ? predict_pipeline(pipeline, std::nullopt, 10) : predict_pipeline(pipeline, AxisRate{1e24, 10});
    // Forward, message, forward and backward of the second stage, message, backward.
    const double behind = measured ? 10 : 0;  // the first stage's wait for what it has sent
    CHECK(step.seconds == Approx(1 + 10 + 1 + 2 + 10 + 2 + behind));
    CHECK(step.stages[1].waiting == Approx(measured ? 1 + 12 : 1 + 2));
    CHECK(step.stages[0].waiting == Approx(1 + 10 + 1 + 2 - 1));
  }
}
