// Jobs on the fake GPUs: they train as on the cpu, in any order of the streams, and end as asked.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/integration/cuda_jobs.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;

TEST_CASE("every strategy trains on the fake GPUs with the cpu's losses and the planned peak of memory", "[cuda]") {
  check_splits(1, {"train.steps=4", "train.eval_every=2", "data.microbatches=3"}, {});
}

TEST_CASE("a run names the GPU, kernels and transport that it uses", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const Ended ended =
      fake.run(job.path(), on_cuda({"job.ini"}, {"job.strategy=dp", "job.ranks=2", "train.steps=1"}, "cuda:1,0"));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::string unit = " (Fake H200, compute capability 9.0)";
  CHECK_THAT(ended.out + ended.err, Contains("device cuda:1" + unit + ": products by own kernels: ") &&
                                        Contains("; attention and convolutions: ") && Contains("; transport shm\n"));
  const json::object summary = job.summary();
  const json::array& ranks = summary.at("ranks").as_array();
  REQUIRE(ranks.size() == 2);
  CHECK(ranks[0].at("device").as_string() == "cuda:1" + unit);
  CHECK(ranks[1].at("device").as_string() == "cuda:0" + unit);
}

TEST_CASE("a job has the same bits whatever the order in which streams run", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  for (const bool by_library : {false, true}) {
    std::vector<double> first;
    for (int seed = 1; seed <= depth(by_library ? 5 : 20, by_library ? 2 : 3, 2); ++seed) {
      const JobFolder job;
      std::vector<std::string> variables = by_library ? by_cublaslt : std::vector<std::string>{};
      variables.push_back("FAKE_CUDA_SEED=" + std::to_string(seed));
      const Ended ended =
          fake.run(job.path(),
                   on_cuda({"job.ini"}, {"job.strategy=zero2", "job.ranks=2", "train.steps=2", "data.microbatches=2"}),
                   variables);
      INFO(ended.err);
      REQUIRE(ended.code == 0);
      first = seed == 1 ? job.losses() : first;
      CHECK(job.losses() == first);
    }
  }
}

TEST_CASE("streams that do not wait for each other change the numbers", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> words =
      on_cuda({"job.ini"}, {"job.strategy=zero2", "job.ranks=2", "train.steps=2", "job.timeout=3"});
  const JobFolder sound;
  REQUIRE(fake.run(sound.path(), words).code == 0);
  int noticed = 0;
  for (int seed = 1; seed <= 3; ++seed) {
    const JobFolder job;
    const Ended ended = fake.run(job.path(), words, {"FAKE_CUDA_FORGET=-1", "FAKE_CUDA_SEED=" + std::to_string(seed)});
    noticed += ended.code != 0 || job.losses() != sound.losses() ? 1 : 0;
  }
  CHECK(noticed == 3);
}

TEST_CASE("verify compares a split job on the fake GPUs with the reference", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const Ended ended = fake.run(
      job.path(), on_cuda({"verify", "job.ini", "--steps", "2", "--json"}, {"job.strategy=zero3", "job.ranks=2"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(json::parse(ended.out).at("passed").as_bool());
}

TEST_CASE("verify --in-process runs the ranks of every strategy on one fake GPU, and needs no processes", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<SplitJob> jobs = split_jobs();
  for (std::size_t j = 0; j < jobs.size(); j += depth<std::size_t>(1, 3, 3)) {  // a test above trains with each of them
    const SplitJob& strategy = jobs[j];
    DYNAMIC_SECTION(strategy.name) {
      const JobFolder job;
      const std::vector<std::string> words = {"verify", "job.ini", "--steps", "2", "--json", "--in-process"};
      std::vector<std::string> settings = strategy.settings;
      settings.emplace_back("data.batch=4");

      const Ended ended = fake.run(job.path(), on_cuda(words, settings, "cuda:0,0,0,0"), {"FAKE_CUDA_GPUS=1"});

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      CHECK(json::parse(ended.out).at("passed").as_bool());
      CHECK_THAT(ended.err, !Contains("starting "));
    }
  }
  const JobFolder job;
  const Ended failed = fake.run(
      job.path(), on_cuda({"verify", "job.ini", "--in-process"}, {"job.strategy=dp", "job.ranks=2"}, "cuda:0,0"),
      {"FAKE_CUDA_FAIL_AT=500"});
  CHECK(failed.code == 1);
  CHECK_THAT(failed.err, Contains("cudaErrorIllegalAddress"));
}

TEST_CASE("a job on the fake GPUs with less time than the least margin saves and ends after the first agreement",
          "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  for (const std::vector<std::string>& ranks : {std::vector<std::string>{"job.ranks=1"},
                                                {"job.ranks=1", "job.restarts=1"},
                                                {"job.ranks=2", "job.strategy=dp"}}) {
    INFO(fmt::format("{}", fmt::join(ranks, " ")));
    std::vector<std::string> settings = ranks;
    settings.insert(settings.end(), {"train.steps=100000", "train.eval_every=0", "job.time_limit=1"});
    settings.emplace_back("checkpoint.every=50000");
    const JobFolder job;

    const Ended ended = fake.run(job.path(), on_cuda({"job.ini"}, settings));

    INFO(ended.err);
    CHECK(ended.code == 75);
    CHECK_THAT(ended.out, Contains("[job] time_limit"));
    CHECK(job.summary().at("steps") == 2);  // step 2 was begun before the result of step 1 was read
    CHECK(job.summary().at("checkpoints").at("last_step") == 2);
  }
}

TEST_CASE("a stopped job on the fake GPUs saves every step that it has begun, and resumes from there", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  for (const char* ranks : {"job.ranks=1", "job.ranks=2"}) {
    INFO(ranks);
    std::vector<std::string> settings = {ranks, "train.steps=100000", "train.schedule=constant", "train.log_every=1",
                                         "checkpoint.every=50000"};
    if (settings.front() == "job.ranks=2") {
      settings.emplace_back("job.strategy=dp");
    }
    const JobFolder job;
    bool asked = false;
    const Ended stopped =
        fake.run(job.path(), on_cuda({"job.ini"}, settings), {}, [&](pid_t process, std::string_view out) {
          if (!asked && out.find("step 5/") != std::string_view::npos) {
            asked = ::kill(process, SIGTERM) == 0;
          }
        });
    REQUIRE(asked);
    INFO(stopped.err);
    CHECK(stopped.code == 75);
    const std::size_t steps = job.metrics().size();
    CHECK(job.summary().at("steps") == steps);
    for (std::size_t i = 0; i < steps; ++i) {
      CHECK(job.metrics()[i].at("step") == i + 1);
    }
    settings[1] = "train.steps=" + std::to_string(steps + 4);

    const Ended resumed = fake.run(job.path(), on_cuda({"run", "job.ini", "--resume"}, settings));

    INFO(resumed.err);
    CHECK(resumed.code == 0);
    CHECK(job.summary().at("first_step") == steps);
  }
}

TEST_CASE("one rank on a fake GPU that may be restarted runs to its end", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const JobFolder job;
  const Ended trained =
      fake.run(job.path(), on_cuda({"job.ini"}, {"job.restarts=1", "checkpoint.every=50", "train.steps=5"}));
  INFO(trained.err);
  CHECK(trained.code == 0);
  CHECK(job.summary().at("status") == "finished");
  CHECK(job.metrics().size() == 5);
  write_file(job.path() / "heat.ini",
             "[job]\ntask = iterate\noutput = heat\n[model]\nname = heat1d\ncells = 103\n[iterate]\nsteps = 20\n");

  const Ended iterated = fake.run(job.path(), on_cuda({"heat.ini"}, {"job.restarts=1", "checkpoint.every=50"}));

  INFO(iterated.err);
  CHECK(iterated.code == 0);
  CHECK(read_json(job.path() / "heat/summary.json").at("steps") == 20);
}
