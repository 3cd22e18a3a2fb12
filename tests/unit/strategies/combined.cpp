#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/unit/strategies/agreement.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

Choice combined(std::vector<plan::MeshAxis> mesh, std::int64_t zero, const std::string& schedule,
                bool sequence = false) {
  Choice choice{"3d", std::move(mesh), {{"zero", zero}, {"sequence", sequence}}};
  add_schedule(choice.options, schedule);
  return choice;
}

}  // namespace

TEST_CASE("data, tensor and pipeline parallelism together agree with the reference", "[strategies]") {
  const std::vector<plan::MeshAxis> cube = {{"data", 2}, {"model", 2}, {"pipe", 2}};
  std::vector<Choice> whole;
  std::vector<Choice> split;
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    for (const std::string& schedule : all_schedules()) {
      whole.push_back(combined(cube, zero, schedule));
      split.push_back(combined(cube, zero, schedule, true));
    }
  }
  check_all_agree({plain_gpt()}, whole);
  check_all_agree({full_gpt()}, split);
}

TEST_CASE("meshes whose sizes divide nothing evenly agree with the reference", "[strategies]") {
  std::vector<Choice> choices;
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    choices.push_back(combined({{"data", 3}, {"model", 2}}, zero, "1f1b", zero % 2 == 1));
    choices.push_back(combined({{"data", 2}, {"model", 3}}, zero, "1f1b", zero % 2 == 0));
    choices.push_back(combined({{"data", 3}, {"pipe", 2}}, zero, "zb-h1"));
    choices.push_back(combined({{"pipe", 3}, {"model", 2}}, zero, "interleaved 2", zero % 2 == 1));
    choices.push_back(combined({{"replica", 2}, {"data", 2}, {"pipe", 2}}, zero, "gpipe"));
  }
  choices.push_back({"3d", ranks(3), {{"zero", std::int64_t{2}}}});
  choices.push_back({"3d", ranks(1)});
  check_all_agree({five_layers()}, choices);
}

TEST_CASE("an mlp and a model with recomputation agree with the reference on three mesh axes", "[strategies]") {
  const std::vector<plan::MeshAxis> cube = {{"data", 2}, {"model", 2}, {"pipe", 2}};
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    check_agrees(mlp_of_numbers(), combined(cube, zero, "zb-h1"));
    check_agrees(
        gpt_case(
            "gpt, computed again",
            {.bias = "true", .dropout = "0.2", .remat = zero % 2 == 0 ? graph::Remat::layer : graph::Remat::selective}),
        combined(cube, zero, "1f1b", zero < 2));
  }
}

TEST_CASE("split parameters are gathered on every stage of a pipeline", "[strategies]") {
  check_agrees(plain_gpt(), combined({{"data", 2}, {"pipe", 2}}, 3, "gpipe"));
  Choice each = combined({{"data", 2}, {"pipe", 2}}, 3, "zb-h1");
  each.options.set("unit", "tensor");
  check_agrees(full_gpt(), each);
}

TEST_CASE("what backward gathers again is not kept, and nothing is computed again", "[strategies]") {
  const std::vector<Choice> choices = {
      {"tp", ranks(2), {{"sequence", true}}},
      {"3d", {{"data", 2}, {"model", 2}, {"pipe", 2}}, {{"sequence", true}, {"zero", std::int64_t{3}}}}};
  check_all_agree({gpt_case("gpt, gathered again", {.bias = "true", .dropout = "0.2", .remat = graph::Remat::gathers})},
                  choices);
  struct Use {
    std::uint64_t activations = 0;
    std::int64_t flops = 0;
    std::int64_t gathers = 0;
  };
  const auto use_of = [&](graph::Remat remat) {
    const ModelCase model = gpt_case("gpt", {.layers = "4", .remat = remat}).model;
    const partition::Programs programs = programs_by(model, split_by(model, choices[0]), 0);
    Use use{.activations = programs.memory.activations};
    for (const std::size_t program : programs.find_calls("micro", model.microbatch_rows)) {
      for (const partition::Instruction& at : programs.programs[program].instructions) {
        use.flops += at.flops;
      }
      for (const partition::Transfer& transfer : programs.programs[program].transfers) {
        use.gathers += transfer.collective == partition::Collective::all_gather ? 1 : 0;
      }
    }
    return use;
  };
  const Use kept = use_of(graph::Remat::none);
  const Use gathered = use_of(graph::Remat::gathers);
  CHECK(gathered.activations < kept.activations);
  CHECK(gathered.flops == kept.flops);
  CHECK(gathered.gathers >= kept.gathers + 2 * 4);  // before attention and mlp of each layer
}

TEST_CASE("every order of 2 x 2 ranks agrees with the reference", "[strategies]") {
  std::vector<std::int64_t> order = {0, 1, 2, 3};
  std::size_t number = 0;
  do {
    const bool has_stages = ++number % 2 == 0;
    Choice choice =
        has_stages ? combined({{"data", 2}, {"pipe", 2}}, 1, "1f1b") : combined({{"data", 2}, {"model", 2}}, 3, "1f1b");
    choice.order = order;
    check_agrees(mlp_of_numbers(), choice);
    if (number % depth<std::size_t>(4, 8, 12) == 0 || number % 7 == 0) {
      check_agrees(plain_gpt(), choice);
    }
  } while (std::ranges::next_permutation(order).found);
  CHECK(number == 24);
}
