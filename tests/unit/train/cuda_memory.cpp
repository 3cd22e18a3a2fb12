// What ranks need of GPUs, compared with the memory that GPUs of a fake of CUDA have.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/forecast/fit.h"
#include "core/forecast/forecast.h"
#include "core/run/requirements.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/cuda/fake_cuda.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

/// A job, and the bytes of a GPU that each of its ranks needs.
struct Planned {
  explicit Planned(const std::vector<std::string>& settings) : job(text_job_in(folder, settings)) {
    for (const forecast::RankForecast& alike : forecast.ranks) {
      for (const std::int64_t rank : alike.members) {
        needs.at(static_cast<std::size_t>(rank)) = alike.memory.peak - alike.memory.staging;
      }
    }
  }
  ~Planned() { fake_cuda::set({}); }

  [[nodiscard]] std::uint64_t least() const { return std::ranges::min(needs); }
  [[nodiscard]] std::uint64_t most() const { return std::ranges::max(needs); }
  [[nodiscard]] std::int64_t fullest() const { return std::ranges::max_element(needs) - needs.begin(); }
  /// The number of ranks that need more than `bytes`.
  [[nodiscard]] std::int64_t over(std::uint64_t bytes) const {
    return std::ranges::count_if(needs, [&](std::uint64_t each) { return each > bytes; });
  }
  /// How the job fits on a machine with so many GPUs, each with so much memory.
  [[nodiscard]] forecast::MemoryFit fit(int gpus, std::uint64_t memory, std::int64_t ranks_here) const {
    fake_cuda::set({.gpus = gpus, .memory = memory});
    return forecast::fit_of_units(job, *compiled.device, forecast, ranks_here);
  }
  [[nodiscard]] forecast::MemoryFit fit_of_cluster(std::uint64_t memory) {
    job.cluster.memory = static_cast<std::int64_t>(memory);
    return forecast::memory_fit(job, *compiled.device, forecast).value();
  }

  TemporaryFolder folder;
  job::Job job;
  compile::Compiled compiled = compile::compile(job);
  forecast::Forecast forecast = forecast::forecast(job, compiled);
  std::vector<std::uint64_t> needs = std::vector<std::uint64_t>(static_cast<std::size_t>(job.ranks));
};

/// The settings of a job with four stages of different sizes.
std::vector<std::string> four_stages(const std::string& device) {
  return {"job.device=" + device, "job.ranks=4",  "job.strategy=pp",
          "model.layers=4",       "data.batch=8", "data.microbatches=4"};
}

}  // namespace

TEST_CASE("if a job has ranks on other machines, any of its ranks may be on a GPU of this one", "[train][cuda]") {
  const Planned four(four_stages("cuda"));
  REQUIRE(four.least() < four.most());

  const forecast::MemoryFit lacking = four.fit(2, four.most() - 1, 2);

  CHECK(lacking.most == four.most());
  CHECK(lacking.ranks == std::vector<std::int64_t>{four.fullest()});
  CHECK(lacking.over == four.over(four.most() - 1));
  CHECK(four.fit(2, four.least(), 2).over == four.over(four.least()));
  CHECK(four.fit(2, four.least() - 1, 2).over == 4);
  CHECK(four.fit(2, four.most(), 2).fits());
  const forecast::MemoryFit of_plan = forecast::memory_fit(four.job, *four.compiled.device, four.forecast).value();
  CHECK(of_plan.most == four.most());
  CHECK(of_plan.ranks == lacking.ranks);
}

TEST_CASE("ranks that share a GPU are counted as the fullest ones if a job has ranks on other machines",
          "[train][cuda]") {
  Planned four(four_stages("cuda:0,0"));
  const std::uint64_t fullest_two = 2 * four.most();

  const forecast::MemoryFit lacking = four.fit_of_cluster(four.most() + four.least() - 1);

  CHECK(lacking.most == fullest_two);
  CHECK(lacking.ranks == std::vector<std::int64_t>(2, four.fullest()));
  CHECK(lacking.over == 4);
  CHECK_THAT(to_string(lacking), Contains("4 ranks do not fit: the fullest, 2 ranks that share a unit, each as rank " +
                                          std::to_string(four.fullest()) + ", need ") &&
                                     Contains(" of [cluster] memory: "));
  CHECK(four.fit_of_cluster(fullest_two - 1).over == four.over(four.most() - 1));
  CHECK(four.fit_of_cluster(fullest_two).fits());
}

TEST_CASE("ranks that know each other are refused together if their GPU has too little memory", "[train][cuda]") {
  const Planned two({"job.device=cuda:0,0", "job.ranks=2", "job.strategy=dp"});
  const std::uint64_t needed = two.needs[0] + two.needs[1];
  const auto require = [&](std::uint64_t memory) {
    fake_cuda::set({.memory = memory});
    run::require_memory_here(two.job, two.compiled, 2);
  };

  CHECK_NOTHROW(require(needed));
  CHECK_THAT(
      error_of([&] { require(needed - 1); }),
      Contains("[job] device = cuda:0,0: 2 ranks do not fit: the fullest, ranks 0, 1 that share a unit, need ") &&
          Contains(" of unit 0 (Fake H200): "));
}
