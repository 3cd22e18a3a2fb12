// Real ranks on a device whose memory the host cannot address: transfers are staged, or a transport moves its memory.

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/program.h"
#include "tests/integration/split_jobs.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;

namespace {

/// The words of a command for the device, with microbatches that differ in size.
std::vector<std::string> words_of(std::vector<std::string> words, std::vector<std::string> settings) {
  settings.insert(settings.end(), {"job.device=unmapped", "data.microbatches=3"});
  return with_settings(std::move(words), settings);
}

/// Settings for a job whose transport is device_memory, except for the mesh axes that `transports` gives another one.
std::vector<std::string> over(std::vector<std::string> settings, const std::vector<std::string>& transports) {
  settings.insert(settings.end(), {"plugins.path=" SHARDRUN_DEVICE_TRANSPORTS, "job.transport=device_memory"});
  settings.insert(settings.end(), transports.begin(), transports.end());
  return settings;
}

}  // namespace

TEST_CASE("every strategy agrees with the reference over every transport when transfers are staged", "[unmapped]") {
  const std::vector<std::string> transports = installed("transport");
  std::size_t turn = 0;
  for (const SplitJob& strategy : split_jobs()) {
    const auto every = depth<std::size_t>(1, transports.size(), transports.size());  // one transport each, in turn
    for (std::size_t t = turn++ % every; t < transports.size(); t += every) {
      const std::string& transport = transports[t];
      DYNAMIC_SECTION(strategy.name << " over " << transport) {
        const JobFolder job;
        std::vector<std::string> settings = strategy.settings;
        settings.insert(settings.end(), {"model.context=6", "model.dropout=0.1"});
        if (strategy.name != "one rank") {
          settings.push_back("job.transport=" + transport);
        }

        const Ended ended =
            run_unmapped(job.path(), words_of({"verify", "job.ini", "--steps", "2", "--json"}, settings));

        INFO(ended.err);
        REQUIRE(ended.code == 0);
        CHECK(json::parse(ended.out).at("passed").as_bool());
      }
    }
  }
}

TEST_CASE("an iterated job has the cpu's states and lines on a device that runs a step behind the host", "[unmapped]") {
  const std::string of_model =
      GENERATE("name = heat2d\nrows = 24\ncolumns = 16\nboundary = periodic\n[sharding]\nx = space\n",
               "name = lms\n[data]\narrays = " SHARDRUN_EXAMPLE_JOBS "/data/x.npy, " SHARDRUN_EXAMPLE_JOBS
               "/data/y.npy\n[sharding]\nbatch = space\n");
  const auto run = [&](const TemporaryFolder& folder, const std::string& device) {
    write_file(folder / "job.ini",
               "[job]\ntask = iterate\nranks = 2\nstrategy = named\nthreads = 1\noutput = run\n"
               "[plugins]\npath = " SHARDRUN_EXAMPLE_PROGRAMS "\n[iterate]\nsteps = 25\nsave_every = 10\n[model]\n" +
                   of_model);
    const std::vector<std::string> words = with_settings({"run", "job.ini"}, {"job.device=" + device});
    const Ended ended = device == "cpu" ? run_program(folder.path(), words) : run_unmapped(folder.path(), words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
  };
  const TemporaryFolder there;
  const TemporaryFolder here;

  run(there, "unmapped");
  run(here, "cpu");

  for (const char* state : {"run/state.safetensors", "run/state-000010.safetensors", "run/state-000020.safetensors"}) {
    CHECK(read_file(there / state) == read_file(here / state));
  }
  CHECK(computed_from(there / "run", 1) == computed_from(here / "run", 1));
  CHECK(computed_from(there / "run", 1).size() == 25);
}

TEST_CASE("training, evaluation and sampling give the cpu's bits and the planned peak of memory", "[unmapped]") {
  for (const SplitJob& strategy : split_jobs(true)) {
    DYNAMIC_SECTION(strategy.name) {
      const JobFolder there;
      const JobFolder here;
      std::vector<std::string> settings = strategy.settings;
      settings.insert(settings.end(), {"train.steps=4", "train.eval_every=2", "train.sample=8", "job.check_every=1"});

      const Ended ended = run_unmapped(there.path(), words_of({"run", "job.ini"}, settings));
      settings.push_back("data.microbatches=3");
      const Ended expected = here.run(settings);

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      REQUIRE(expected.code == 0);
      CHECK(there.losses() == here.losses());
      const json::object summary = there.summary();
      for (const json::value& rank : summary.at("ranks").as_array()) {
        CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
      }
    }
  }
}

TEST_CASE("a loss that is not finite stops the ranks and names the step and the tensor", "[unmapped]") {
  const JobFolder job;

  const Ended ended =
      run_unmapped(job.path(), words_of({"run", "job.ini"}, {"job.strategy=dp", "job.ranks=2", "train.steps=5",
                                                             "train.learning_rate=1e30", "train.clip=0"}));

  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("step 2: the loss is NaN; the first tensor that is not finite: layer.0/"));
}

TEST_CASE("a queued transfer that does not end stops the ranks, and names the missing rank", "[unmapped]") {
  for (const std::string over : {"shm", "tcp"}) {
    DYNAMIC_SECTION(over) {
      const JobFolder job;
      const std::vector<std::string> settings = {"job.strategy=dp",
                                                 "job.ranks=2",
                                                 "job.transport=chaos",
                                                 "transport.chaos.rank=1",
                                                 "train.steps=1000",
                                                 "job.timeout=2",
                                                 "transport.chaos.stall=true",
                                                 "transport.chaos.at_op=9",
                                                 "transport.chaos.over=" + over};

      const Ended ended = run_unmapped(job.path(), words_of({"run", "job.ini"}, settings));

      CHECK(ended.code == 1);
      CHECK_THAT(ended.err, Contains("does not answer other ranks") && Contains(" member 1 (rank 1"));
    }
  }
}

TEST_CASE("the plan shows staging as communication", "[unmapped]") {
  const JobFolder job;
  const std::vector<std::string> settings = {"job.strategy=dp", "job.ranks=2"};
  const auto bytes = [](const Ended& ended) {
    return json::parse(ended.out).at("ranks").at(0).at("bytes").as_object();
  };

  const json::object staged = bytes(run_unmapped(job.path(), words_of({"plan", "job.ini", "--json"}, settings)));
  const json::object plain = bytes(run_program(
      job.path(), with_settings({"plan", "job.ini", "--json"}, {settings[0], settings[1], "data.microbatches=3"})));

  const std::int64_t more = staged.at("peak").as_int64() - plain.at("peak").as_int64();
  CHECK(staged.at("communication").as_int64() > plain.at("communication").as_int64());
  CHECK(more > 0);
  CHECK(staged.at("parameters") == plain.at("parameters"));
}

TEST_CASE("a transport that moves the device's memory trains every strategy with the cpu's losses, as planned",
          "[unmapped]") {
  struct Mix {
    std::string strategy;
    std::vector<std::string> transports;  ///< besides device_memory
  };
  std::vector<Mix> mixes;
  for (const SplitJob& strategy : split_jobs(true)) {
    mixes.push_back({strategy.name, {}});
  }
  mixes.push_back({"hsdp", {"transport.replica=tcp"}});
  mixes.push_back({"3d", {"transport.data=tcp"}});
  mixes.push_back({"3d", {"transport.model=shm"}});
  for (const Mix& mix : mixes) {
    const std::vector<SplitJob> jobs = split_jobs();
    const SplitJob& strategy = *std::ranges::find(jobs, mix.strategy, &SplitJob::name);
    if (strategy.name == "one rank") {
      continue;
    }
    DYNAMIC_SECTION(strategy.name << " " << (mix.transports.empty() ? "" : mix.transports.front())) {
      const JobFolder there;
      const std::vector<std::string> more = {"train.steps=4", "train.eval_every=2", "job.check_every=1",
                                             "job.timeout=60"};
      std::vector<std::string> settings = strategy.settings;
      settings.insert(settings.end(), more.begin(), more.end());

      const Ended ended = run_unmapped(there.path(), words_of({"run", "job.ini"}, over(settings, mix.transports)));

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      CHECK_THAT(there.losses(), Catch::Matchers::Approx(on_one_rank(strategy, more).losses())
                                     .margin(strategy.name.ends_with("precision") ? 1e-2 : 1e-5));
      const json::object summary = there.summary();
      for (const json::value& rank : summary.at("ranks").as_array()) {
        CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
      }
    }
  }
}

TEST_CASE(
    "a job with transfers in the device's memory agrees with the reference, and stages only for hooks and the host",
    "[unmapped]") {
  for (const std::string strategy : {"3d", "pp, zb-h1"}) {
    DYNAMIC_SECTION(strategy) {
      const JobFolder job;
      const std::vector<SplitJob> jobs = split_jobs();
      std::vector<std::string> settings = std::ranges::find(jobs, strategy, &SplitJob::name)->settings;
      settings.insert(settings.end(), {"model.context=6", "model.dropout=0.1"});

      const Ended ended = run_unmapped(
          job.path(), words_of({"verify", "job.ini", "--steps", "2", "--json"}, over(std::move(settings), {})));

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      CHECK(json::parse(ended.out).at("passed").as_bool());
    }
  }
  const auto communication = [](const std::vector<std::string>& settings) {
    const JobFolder job;
    const Ended ended = run_unmapped(job.path(), words_of({"plan", "job.ini", "--json"}, settings));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return json::parse(ended.out).at("ranks").at(0).at("bytes").at("communication").as_int64();
  };
  const std::vector<std::string> settings = {"job.strategy=zero1", "job.ranks=2"};
  CHECK(communication(over(settings, {})) < communication(settings));
}

TEST_CASE("a loss that is not finite is found with transfers in the device's memory", "[unmapped]") {
  const JobFolder job;

  const Ended ended =
      run_unmapped(job.path(), words_of({"run", "job.ini"}, over({"job.strategy=dp", "job.ranks=2", "train.steps=5",
                                                                  "train.learning_rate=1e30", "train.clip=0"},
                                                                 {})));

  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("step 2: the loss is NaN; the first tensor that is not finite: layer.0/"));
}

TEST_CASE("a transport that cannot do the job's ops in the device's memory is refused before ranks start",
          "[unmapped]") {
  const JobFolder job;
  const std::vector<std::string> dp = {"job.strategy=dp", "job.ranks=2"};
  const Ended unordered = run_unmapped(job.path(), words_of({"run", "job.ini"}, over(dp, {"job.deterministic=true"})));
  CHECK(unordered.code == 2);
  CHECK_THAT(unordered.err,
             Contains("--set job.transport: transport device_memory, all_reduce ") &&
                 Contains("it does not reduce in the order of the members, as the job asks, and what it lacks can be "
                          "made of sends and receives in host memory alone: choose another transport for the mesh "
                          "axis 'data'"));
  const Ended on_cpu = run_program(job.path(), with_settings({"run", "job.ini"}, over(dp, {})));
  CHECK(on_cpu.code == 2);
  CHECK_THAT(on_cpu.err, Contains("transport device_memory does not move host memory"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}
