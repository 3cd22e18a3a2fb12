#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "tests/integration/installation.h"
#include "tests/integration/program.h"
#include "tests/integration/split_jobs.h"
#include "tests/support/catch.h"

/// What tests of jobs on the fake GPUs share.
namespace shardrun::test {

inline void check_refused(const Ended& ended, const std::string& why) {
  INFO(ended.out);
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Catch::Matchers::Contains(why));
}

/// The variables that let the fake of cuBLASLt compute products.
inline const std::vector<std::string> by_cublaslt = {"SHARDRUN_CUDA_PRODUCTS=cublaslt",
                                                     "LD_LIBRARY_PATH=" SHARDRUN_FAKE_CUBLASLT};

/// Checks that a job on the fake GPUs has the losses of the cpu, and that it has touched the planned memory.
inline void check_losses(const JobFolder& there, const JobFolder& here, const SplitJob& strategy) {
  const std::vector<double> losses = there.losses();
  const std::vector<double> of_cpu = here.losses();
  REQUIRE(losses.size() == of_cpu.size());
  const double allowed = strategy.name.ends_with("mixed precision") ? 2e-2 : 2e-5;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CHECK(std::abs(losses[i] - of_cpu[i]) <= allowed);
    CHECK(there.metrics()[i].at("step") == here.metrics()[i].at("step"));
    CHECK(there.metrics()[i].contains("val_loss") == here.metrics()[i].contains("val_loss"));
  }
  const boost::json::object summary = there.summary();
  for (const boost::json::value& rank : summary.at("ranks").as_array()) {
    CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
  }
}

/// Checks jobs of all strategies, or of every `stride`-th, with these settings. Each has a seed of its own, from
/// `seed` on.
inline void check_splits(std::uint64_t seed, const std::vector<std::string>& more, std::vector<std::string> variables,
                         std::size_t stride = 1) {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  variables.emplace_back();
  const std::vector<SplitJob> jobs = split_jobs();
  for (std::size_t j = 0; j < jobs.size(); j += stride) {
    const SplitJob& strategy = jobs[j];
    DYNAMIC_SECTION(strategy.name) {
      const JobFolder there;
      const JobFolder& here = on_one_rank(strategy, more);
      std::vector<std::string> settings = strategy.settings;
      settings.insert(settings.end(), more.begin(), more.end());
      variables.back() = "FAKE_CUDA_SEED=" + std::to_string(seed);

      const Ended ended = fake.run(there.path(), on_cuda({"job.ini"}, settings, "cuda:0,0,1,1"), variables);

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      check_losses(there, here, strategy);
    }
    ++seed;
  }
}

}  // namespace shardrun::test
