#pragma once

#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

// Jobs for ranks that another launcher starts.

namespace shardrun::test {

inline std::string with_sets(std::string command, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    command += " --set " + setting;
  }
  return command;
}

inline std::vector<std::string> dp(const std::string& transport, int ranks, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"job.strategy=dp", "job.transport=" + transport, "job.ranks=" + std::to_string(ranks)});
  return more;
}

inline const std::vector<std::string> endless = {"train.steps=1000000", "train.log_every=1"};

inline void check_losses(const JobFolder& job, const std::vector<double>& expected) {
  const std::vector<double> losses = job.losses();
  REQUIRE(losses.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(losses[i] == Approx(expected[i]).epsilon(1e-5));
  }
}

inline std::vector<double> losses_over_shm(int ranks) {
  const JobFolder job;
  REQUIRE(job.run(dp("shm", ranks)).code == 0);
  return job.losses();
}

}  // namespace shardrun::test
