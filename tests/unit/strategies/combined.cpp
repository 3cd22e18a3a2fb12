#include "tests/support/catch.h"
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
