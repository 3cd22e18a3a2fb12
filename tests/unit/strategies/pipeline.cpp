#include "tests/support/catch.h"
#include "tests/unit/strategies/agreement.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

std::vector<Choice> pipelines(const std::vector<std::uint32_t>& numbers) {
  std::vector<Choice> choices;
  for (const std::uint32_t number : numbers) {
    for (const std::string& schedule : all_schedules()) {
      Choice choice{"pp", ranks(number)};
      add_schedule(choice.options, schedule);
      choices.push_back(choice);
    }
  }
  return choices;
}

}  // namespace

// Some pipelines have more stages or chunks than layers. Those without a layer hand on what they are given.
TEST_CASE("pipelines with every schedule agree with the reference", "[strategies]") {
  check_all_agree({plain_gpt(), full_gpt(), mlp_of_numbers()}, pipelines({1, 2, 3, 4, 8}));
}

TEST_CASE("pipelines over more layers than stages agree with the reference", "[strategies]") {
  check_all_agree({five_layers()}, pipelines({2, 4}));
}

TEST_CASE("pipelines with layers as written agree with the reference", "[strategies]") {
  const auto cut = [](const std::string& schedule, const std::string& layers) {
    Choice choice{"pp", ranks(2), {{"layers", layers}}};
    add_schedule(choice.options, schedule);
    return choice;
  };
  check_all_agree({five_layers()}, {cut("1f1b", "4, 1"), cut("zb-h1", "0,5"), cut("interleaved 2", " 1,0 , 3,1 ")});
  const auto first_layers = [&](const Choice& choice) {
    std::vector<std::uint32_t> layers;
    for (const plan::Chunk& chunk : answer_by(five_layers().model, choice).plan.pipeline.chunks) {
      layers.push_back(chunk.first_layer);
    }
    return layers;
  };
  CHECK(first_layers(cut("1f1b", "4, 1")) == std::vector<std::uint32_t>{0, 4});
  CHECK(first_layers(cut("interleaved 2", " 1,0 , 3,1 ")) == std::vector<std::uint32_t>{0, 1, 1, 4});
}

TEST_CASE("pipelines with recomputation agree with the reference", "[strategies]") {
  for (const graph::Remat remat : {graph::Remat::layer, graph::Remat::selective}) {
    check_all_agree(
        {gpt_case("gpt, computed again", {.layers = "3", .bias = "true", .dropout = "0.2", .remat = remat})},
        pipelines({2}));
  }
}

TEST_CASE("a pipeline of one microbatch agrees with the reference", "[strategies]") {
  const VerifyCase one(training_case("gpt, one microbatch", "gpt",
                                     {{"layers", "2"}, {"heads", "2"}, {"width", "4"}, {"context", "3"}}, {.vocab = 5},
                                     {.batch = 3, .eval_rows = 2, .eval_samples = 3, .optimizer = {.clip = 0.5}}));
  check_all_agree({one}, pipelines({2, 3}));
}
