// What the busiest rank keeps of the model's states, against the formulas of ZeRO (Rajbhandari et al. 2019,
// arXiv:1910.02054, table 1) with mixed precision and bfloat16 gradients: 2 bytes of a parameter, 2 of its gradient,
// 12 of the optimizer's states.

#include <fmt/format.h>

#include <algorithm>

#include "core/forecast/forecast.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

struct Size {
  int layers;
  int heads;
  int width;
};

struct Stage {
  const char* strategy;
  double whole;  ///< bytes of each parameter that every rank has
  double split;  ///< and those that are divided by the number of ranks
};

constexpr Stage stages[] = {{"dp", 16, 0}, {"zero1", 4, 12}, {"zero2", 2, 14}, {"zero3", 0, 16}};

/// The bytes of parameters, gradients and the optimizer's states, on the rank with the most.
std::uint64_t busiest(const forecast::Forecast& forecast) {
  std::uint64_t most = 0;
  for (const forecast::RankForecast& ranks : forecast.ranks) {
    most = std::max(most, ranks.memory.parameters + ranks.memory.gradients + ranks.memory.optimizer);
  }
  return most;
}

void check_table(const Size& size) {
  const TemporaryFolder folder;
  for (const Stage& stage : stages) {
    for (const int ranks : {4, 64, 1024}) {
      const std::string text = fmt::format(
          "[job]\nranks = {}\nstrategy = {}\n[model]\nname = gpt\nlayers = {}\nheads = {}\nwidth = {}\ncontext = 1024\n"
          "vocab = 50257\n[data]\nbatch = 1024\n[train]\nsteps = 1\nprecision = mixed\ngradients = bfloat16\n",
          ranks, stage.strategy, size.layers, size.heads, size.width);
      const job::Job job = job_in(folder, text);
      const compile::Compiled compiled = compile::compile(job);
      const auto parameters = static_cast<double>(graph::parameter_count(compiled.graph));
      const double formula = parameters * (stage.whole + stage.split / ranks);
      const auto planned = static_cast<double>(busiest(forecast::forecast(job, compiled)));
      INFO(fmt::format("{:.1f}B parameters, {} ranks, {}: {:.4f} GB planned, {:.4f} GB by the formula, ratio {:.5f}",
                       parameters / 1e9, ranks, stage.strategy, planned / 1e9, formula / 1e9, planned / formula));
      CHECK(planned >= formula);
      CHECK(planned <= 1.01 * formula);
    }
  }
}

}  // namespace

TEST_CASE("a model of 7.5B parameters is split within 1 % of ZeRO's formulas", "[forecast]") {
  check_table({.layers = 48, .heads = 32, .width = 3584});
}

TEST_CASE("a model of 128B parameters is split within 1 % of ZeRO's formulas", "[forecast]") {
  check_table({.layers = 60, .heads = 104, .width = 13312});
}
