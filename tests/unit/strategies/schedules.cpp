// The SDK's schedules as core proves and lays them out.

#include <shardrun/sdk/strategy/pipeline.hpp>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "core/compile/describe.h"
#include "core/partition/pipeline.h"
#include "core/partition/stages.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/plans.h"
#include "tests/unit/strategies/agreement.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

struct Schedule {
  std::string name;
  std::uint32_t chunks = 1;  ///< per stage
};

const std::vector<Schedule> schedules = {{"gpipe"}, {"1f1b"}, {"zb-h1"}, {"interleaved", 2}, {"interleaved", 3}};

plan::Action::Kind kind_of(sdk::Action::Kind kind) {
  using Kind = plan::Action::Kind;
  switch (kind) {
    case sdk::Action::Kind::forward: return Kind::forward;
    case sdk::Action::Kind::backward: return Kind::backward;
    case sdk::Action::Kind::backward_input: return Kind::backward_input;
    case sdk::Action::Kind::backward_weight: return Kind::backward_weight;
  }
  throw Error(ErrorCode::internal, "there is no such kind of action");
}

/// The pipeline that the SDK's schedule gives, with one layer in each chunk.
plan::Pipeline pipeline_of(const Schedule& schedule, std::uint32_t stages, std::uint32_t microbatches) {
  plan::Pipeline pipeline{.mesh_axis = "pipe", .chunks = {}, .actions = {}};
  for (std::uint32_t c = 0; c < schedule.chunks * stages; ++c) {
    pipeline.chunks.push_back({c, c % stages});
  }
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    const std::vector<sdk::Action> actions =
        schedule.name == "gpipe"   ? sdk::gpipe_actions(stage, microbatches)
        : schedule.name == "zb-h1" ? sdk::zero_bubble_h1(stage, stages, microbatches)
                                   : sdk::one_forward_one_backward(stage, stages, schedule.chunks, microbatches);
    std::vector<plan::Action>& list = pipeline.actions.emplace_back();
    for (const sdk::Action& action : actions) {
      list.push_back({kind_of(action.kind), action.chunk, action.microbatch});
    }
  }
  return pipeline;
}

/// A network of that many layers, as small as can be, with one row in each microbatch.
ModelCase layers(std::uint32_t number, std::uint32_t microbatches) {
  const std::string text = std::to_string(number);
  return training_case("gpt", "gpt", {{"layers", text}, {"heads", "1"}, {"width", "2"}, {"context", "2"}}, {.vocab = 3},
                       {.batch = microbatches, .microbatches = microbatches});
}

/// The most microbatches of which a rank holds, at any one instruction, something that forward has left for backward.
std::size_t most_alive(const partition::Programs& programs, const std::vector<std::int64_t>& rows) {
  const partition::Program& program = programs.programs[programs.find_calls("micro", rows).front()];
  std::set<partition::BufferId> given;
  for (const partition::Port& port : program.inputs) {
    given.insert(port.buffer);
  }
  struct Life {
    std::int32_t first = 0;
    std::int32_t last = 0;
    std::size_t call = 0;
  };
  std::vector<Life> lives;
  for (const partition::Instruction& at : program.instructions) {
    if (at.phase == graph::Phase::forward) {
      continue;
    }
    for (const partition::BufferId id : at.inputs) {
      const partition::Buffer& buffer = program.buffers[id];
      const partition::Instruction& maker = program.instructions[static_cast<std::size_t>(buffer.first)];
      if (id >= partition::buffer_of(programs.states.next()) && !given.contains(id) &&
          maker.phase == graph::Phase::forward) {
        lives.push_back({buffer.first, buffer.last, at.call});
      }
    }
  }
  std::size_t most = 0;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(program.instructions.size()); ++i) {
    std::set<std::size_t> alive;
    for (const Life& life : lives) {
      if (life.first <= i && i <= life.last) {
        alive.insert(life.call);
      }
    }
    most = std::max(most, alive.size());
  }
  return most;
}

std::vector<std::size_t> most_alive_of_stages(const std::string& schedule, std::uint32_t stages,
                                              std::uint32_t microbatches) {
  const ModelCase model = layers(stages, microbatches);
  const partition::Partition partition = split_by(model, {"pp", ranks(stages), {{"schedule", schedule}}});
  std::vector<std::size_t> most;
  for (std::int64_t rank = 0; rank < static_cast<std::int64_t>(stages); ++rank) {
    most.push_back(most_alive(programs_by(model, partition, rank), model.microbatch_rows));
  }
  return most;
}

/// 80 layers of the same size. What is before them has as many parameters as one layer and a quarter, and so has what
/// is behind them.
sdk::Graph eighty_layers(std::uint64_t flops_behind, double seconds = 0) {
  sdk::Graph graph;
  graph.layers.assign(80,
                      {.parameter_bytes = 100, .forward_flops = 50, .backward_input_flops = 50, .seconds = seconds});
  graph.before = {.parameter_bytes = 125};
  graph.behind = {.parameter_bytes = 125, .forward_flops = flops_behind, .seconds = seconds};
  return graph;
}

/// The number of layers in each chunk.
std::vector<std::uint32_t> layers_of(const std::vector<sdk::Chunk>& chunks, std::uint32_t layers) {
  std::vector<std::uint32_t> numbers;
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    numbers.push_back((c + 1 < chunks.size() ? chunks[c + 1].first_layer : layers) - chunks[c].first_layer);
  }
  return numbers;
}

}  // namespace

TEST_CASE("the slowest stage is as fast as can be, and the others are as even as can be", "[strategies]") {
  using Numbers = std::vector<std::uint32_t>;
  const auto cut = [](const sdk::Graph& graph, std::uint32_t chunks, std::uint32_t stages) {
    return layers_of(sdk::balanced_chunks(graph, chunks, stages), 80);
  };
  CHECK(cut(eighty_layers(123), 8, 8) == Numbers{10, 11, 10, 10, 10, 10, 10, 9});
  CHECK(cut(eighty_layers(0), 8, 8) == Numbers(8, 10));
  CHECK(cut(eighty_layers(0), 3, 3) == Numbers{27, 27, 26});
  CHECK(cut(eighty_layers(500), 4, 2) == Numbers{21, 21, 21, 17});
  // Predicted times count in place of FLOPs.
  CHECK(cut(eighty_layers(500, 0.25), 3, 3) == Numbers{27, 27, 26});
  CHECK(cut(eighty_layers(0, 0.25), 2, 2) == Numbers{40, 40});
}

TEST_CASE("a strategy learns the predicted time of a layer", "[strategies]") {
  const ModelCase model = layers(2, 3);
  const auto seconds = [&](double flops, double memory_bandwidth) {
    const sdk::Layer layer = compile::describe(model.graph, model.microbatch_rows, {},
                                               {.flops = flops, .memory_bandwidth = memory_bandwidth})
                                 .graph.layers.at(1);
    const std::uint64_t work = layer.forward_flops + layer.backward_input_flops + layer.backward_weight_flops;
    return std::pair(layer.seconds, static_cast<double>(work));
  };
  CHECK(seconds(0, 0).first == 0);
  const auto [computing, flops] = seconds(8, 1e30);
  CHECK(computing == Approx(flops / 8));
  const double moving = seconds(1e30, 1).first;
  CHECK(seconds(1e30, 4).first == Approx(moving / 4));
  CHECK(seconds(8, 1).first >= std::max(computing, moving));
}

TEST_CASE("schedules have every action once, in an order in which no stage waits forever", "[strategies]") {
  for (const Schedule& schedule : schedules) {
    for (std::uint32_t stages = 1; stages <= 6; ++stages) {
      const std::uint32_t chunks = stages == 1 ? 1 : schedule.chunks;
      for (std::uint32_t microbatches = 1; microbatches <= 9; microbatches += depth(1U, 1U, 4U)) {
        const ModelCase model = layers(stages * chunks, microbatches);
        plan::Plan plan = plan_of({{"pipe", stages}}, {});
        plan.pipeline = pipeline_of({schedule.name, chunks}, stages, microbatches);
        INFO(schedule.name << ", " << stages << " stages of " << chunks << " chunks, " << microbatches
                           << " microbatches");
        const partition::Placements placements = partition::place(model.graph, plan);
        const partition::Pipeline pipeline =
            partition::pipeline_of(plan, placements.mesh, static_cast<std::int32_t>(microbatches));
        partition::Stages cut;
        REQUIRE_NOTHROW(cut = partition::cut_stages(model.graph, partition::shard(model.graph, placements), pipeline,
                                                    model.microbatch_rows));
        std::size_t under_way = 0;
        for (const partition::SplitFunction& function :
             cut.functions_of(model.graph, partition::StageId(0), partition::MessageMemory::host)) {
          under_way = std::max(under_way, function.under_way);
        }
        CHECK(under_way == 1);
      }
    }
  }
}

TEST_CASE("1F1B keeps fewer microbatches than GPipe", "[strategies]") {
  using Most = std::vector<std::size_t>;
  CHECK(most_alive_of_stages("gpipe", 4, 7) == Most{7, 7, 7, 7});
  CHECK(most_alive_of_stages("1f1b", 4, 7) == Most{4, 3, 2, 1});
  CHECK(most_alive_of_stages("1f1b", 4, 3) == Most{3, 3, 2, 1});
  CHECK(most_alive_of_stages("zb-h1", 4, 7) == Most{4, 4, 4, 4});
}
