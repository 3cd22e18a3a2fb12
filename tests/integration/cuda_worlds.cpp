// Ranks on the fake GPUs (tests/support/cuda) that a script has started, with environment variables for their places.

#include <fmt/format.h>

#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "tests/integration/installation.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

/// Runs all ranks of a job on a machine with `gpus` fake GPUs. They get only their numbers and `variables`.
std::vector<Ended> run_ranks(const JobFolder& job, int ranks, int gpus, const std::vector<std::string>& variables) {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  std::vector<std::future<Ended>> running;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> all = {fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", ranks),
                                    fmt::format("FAKE_CUDA_GPUS={}", gpus), "TMPDIR=" + job.path().string()};
    all.insert(all.end(), variables.begin(), variables.end());
    running.push_back(std::async(std::launch::async, [&fake, &job, ranks, all] {
      return fake.run(job.path(),
                      on_cuda({"job.ini"}, {"job.strategy=dp", "job.transport=tcp", "train.steps=2", "data.batch=6",
                                            fmt::format("job.ranks={}", ranks)}),
                      all);
    }));
  }
  std::vector<Ended> ended;
  for (std::future<Ended>& each : running) {
    ended.push_back(each.get());
  }
  return ended;
}

}  // namespace

TEST_CASE("ranks of one machine without LOCAL_RANK are all refused where there are too few fake GPUs", "[cuda]") {
  const JobFolder job;

  for (const Ended& each : run_ranks(job, 3, 2, {"MASTER_ADDR=127.0.0.1", "MASTER_PORT=29517"})) {
    CHECK(each.code == 2);
    CHECK(each.out.empty());
    CHECK_THAT(each.err, Contains("[job] device = cuda: 3 ranks are on this machine, which has 0 (Fake H200, ") &&
                             Contains("): start one rank for each ([job] ranks = auto), or name the unit of each rank: cuda:0,0,1\n"));
  }
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}
