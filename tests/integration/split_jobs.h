#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"

namespace shardrun::test {

/// A way to split the job of JobFolder.
struct SplitJob {
  std::string name;
  std::vector<std::string> settings;
};

/// All strategies, for devices other than the cpu. `few`: with tests/run, only those without which some collective or
/// some part of the plan would not occur.
[[nodiscard]] inline std::vector<SplitJob> split_jobs(bool few = false) {
  if (few && !all_tests) {
    return {{"zero3", {"job.strategy=zero3", "job.ranks=3"}},
            {"tp with a sequence split", {"job.strategy=tp", "job.ranks=3", "strategy.sequence=true"}},
            {"zero2 in mixed precision", {"job.strategy=zero2", "job.ranks=2", "train.precision=mixed"}},
            {"3d", {"job.strategy=3d", "job.ranks=4", "mesh.data=2", "mesh.model=2", "strategy.zero=2"}}};
  }
  return {{"one rank", {"job.ranks=1"}},
          {"dp", {"job.strategy=dp", "job.ranks=2"}},
          {"zero1", {"job.strategy=zero1", "job.ranks=2"}},
          {"zero2", {"job.strategy=zero2", "job.ranks=2"}},
          {"zero3", {"job.strategy=zero3", "job.ranks=3"}},
          {"hsdp", {"job.strategy=hsdp", "job.ranks=4", "mesh.replica=2", "mesh.shard=2"}},
          {"tp", {"job.strategy=tp", "job.ranks=2"}},
          {"tp with a sequence split", {"job.strategy=tp", "job.ranks=3", "strategy.sequence=true"}},
          {"pp, 1f1b", {"job.strategy=pp", "job.ranks=2", "strategy.schedule=1f1b"}},
          {"pp, zb-h1", {"job.strategy=pp", "job.ranks=2", "strategy.schedule=zb-h1"}},
          {"zero2 in mixed precision", {"job.strategy=zero2", "job.ranks=2", "train.precision=mixed"}},
          {"3d", {"job.strategy=3d", "job.ranks=4", "mesh.data=2", "mesh.model=2", "strategy.zero=2"}}};
}

/// The job as the cpu runs it on one rank, in the strategy's precision. Each is run once.
[[nodiscard]] inline const JobFolder& on_one_rank(const SplitJob& strategy, std::vector<std::string> settings) {
  static std::map<std::vector<std::string>, JobFolder> jobs;
  settings.emplace_back("job.ranks=1");
  for (const std::string& setting : strategy.settings) {
    if (setting.starts_with("train.precision=")) {
      settings.push_back(setting);
    }
  }
  const auto [job, is_new] = jobs.try_emplace(settings);
  if (is_new) {
    const Ended ended = job->second.run(settings);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
  }
  return job->second;
}

}  // namespace shardrun::test
