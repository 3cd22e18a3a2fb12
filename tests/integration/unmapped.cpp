// Real ranks on a device whose memory the host cannot address: transfers are staged.

#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/integration/split_jobs.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;

namespace {

/// The same for `run` and for the program with the device.
std::vector<std::string> words_of(std::vector<std::string> words, std::vector<std::string> settings) {
  settings.insert(settings.end(), {"job.device=unmapped", "data.microbatches=3"});
  return with_settings(std::move(words), settings);
}

}  // namespace

TEST_CASE("every strategy agrees with the reference over every transport when transfers are staged", "[unmapped]") {
  for (const std::string& transport : installed("transport")) {
    for (const SplitJob& strategy : split_jobs()) {
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

TEST_CASE("an iterated job has the cpu's states and lines, though the host is a step ahead", "[unmapped]") {
  const auto run = [](const TemporaryFolder& folder, const std::string& device) {
    write_file(folder / "job.ini",
               "[job]\ntask = iterate\nranks = 2\nstrategy = named\nthreads = 1\noutput = run\n"
               "[model]\nname = heat2d\nrows = 24\ncolumns = 16\nboundary = periodic\n"
               "[sharding]\nx = space\n[iterate]\nsteps = 25\nsave_every = 10\n");
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

TEST_CASE("training, evaluation and sampling give the cpu's bits and touch what was planned", "[unmapped]") {
  for (const SplitJob& strategy : split_jobs()) {
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

TEST_CASE("a loss that is not finite stops the ranks with the step and the tensor", "[unmapped]") {
  const JobFolder job;

  const Ended ended =
      run_unmapped(job.path(), words_of({"run", "job.ini"}, {"job.strategy=dp", "job.ranks=2", "train.steps=5",
                                                             "train.learning_rate=1e30", "train.clip=0"}));

  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("step 2: the loss is NaN; the first tensor that is not finite: layer.0/"));
}

TEST_CASE("a transfer in a queue that does not end stops the ranks, and says who is missing", "[unmapped]") {
  for (const std::string over : {"shm", "gloo"}) {
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
      CHECK_THAT(ended.err, Contains("does not answer other ranks") && Contains("waiting for member 1 (rank 1"));
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
