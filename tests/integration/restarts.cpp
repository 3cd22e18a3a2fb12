// Jobs whose ranks die or hang, and are started again.

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/npy.h"
#include "tests/support/processes.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;

namespace {

using Settings = std::vector<std::string>;

Settings operator+(Settings first, const Settings& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Settings with two layers, dropout, microbatches of different sizes, evaluations, and two ranks over a transport that
/// can kill one.
const Settings two_ranks = {"job.ranks=2",         "job.strategy=dp",   "job.transport=chaos", "job.threads=1",
                            "data.microbatches=3", "model.dropout=0.1", "train.steps=12",      "train.eval_every=4",
                            "checkpoint.every=2",  "checkpoint.keep=0"};

std::string weights(const std::filesystem::path& output) { return read_file(output / "weights.safetensors"); }

json::array attempts_of(const JobFolder& job) {
  const json::object summary = job.summary();
  return summary.contains("attempts") ? summary.at("attempts").as_array() : json::array();
}

}  // namespace

TEST_CASE("a job whose rank dies again and again ends with the bits of an undisturbed job", "[program]") {
  const JobFolder job;
  for (const std::string over : {"shm", "tcp"}) {
    INFO(over);
    std::filesystem::remove_all(job.path() / "whole");
    std::filesystem::remove_all(job.path() / "run/checkpoints");
    const Settings settings = two_ranks + Settings{"transport.chaos.over=" + over};
    REQUIRE(job.run(settings + Settings{"job.output=whole"}).code == 0);
    // Each attempt gets some steps further. Checkpoints are not written in the background, so that all attempts do
    // the same.
    const Ended ended = job.run(settings + Settings{"job.restarts=1", "checkpoint.async=false",
                                                    "transport.chaos.kill_rank=1", "transport.chaos.at_op=25"});
    INFO(ended.err << ended.out);
    REQUIRE(ended.code == 0);
    CHECK(weights(job.path() / "run") == weights(job.path() / "whole"));
    CHECK(computed_from(job.path() / "run", 0) == computed_from(job.path() / "whole", 0));
    const json::array attempts = attempts_of(job);
    REQUIRE(attempts.size() >= 2);
    CHECK(attempts[1].at("first_step").as_int64() > 0);
    for (std::size_t i = 0; i < attempts.size(); ++i) {
      CHECK(attempts[i].at("rank") == 1);
      CHECK(attempts[i].at("ranks") == 2);
      CHECK_THAT(std::string(attempts[i].at("cause").as_string()), Contains("was killed by signal 9 (SIGKILL)"));
      const std::filesystem::path record = job.path() / "run/attempts" / std::to_string(i + 1);
      CHECK(read_json(record / "summary.json").at("status") == "failed");
      CHECK_THAT(read_file(record / "log/rank-1.log"), Contains("chaos"));
      CHECK(std::filesystem::exists(record / "flight/rank-0.jsonl"));
    }
    CHECK_THAT(ended.out, Contains(fmt::format("; attempt 2 of 2 goes on after step {} (record of the failed one: run/"
                                               "attempts/1)",
                                               attempts[1].at("first_step").as_int64())));
    CHECK(job.summary().at("first_step").as_int64() > attempts.back().at("first_step").as_int64());
  }
  // A later run that begins at the start keeps no record of these attempts.
  std::filesystem::remove_all(job.path() / "run/checkpoints");
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/attempts"));
}

TEST_CASE("a job without progress is given up after its restarts, with the first failure", "[program]") {
  const JobFolder job;
  const Ended ended =
      job.run(two_ranks + Settings{"job.restarts=2", "transport.chaos.kill_rank=1", "transport.chaos.at_op=1"});
  CHECK(ended.code == 1);
  REQUIRE(attempts_of(job).size() == 2);
  CHECK(job.summary().at("status") == "failed");
  CHECK_THAT(ended.out, Contains("; attempt 2 of 3 begins at the start (") && Contains("; attempt 3 of 3 begins at the "
                                                                                       "start ("));
  CHECK_THAT(ended.err, Contains("given up after 2 restarts without a newer checkpoint; the first of these failures: " +
                                 std::string(attempts_of(job)[0].at("cause").as_string())));
}

TEST_CASE("a rank that hangs is restarted", "[program]") {
  const JobFolder job;
  const Ended ended =
      job.run(two_ranks + Settings{"job.restarts=1", "job.timeout=1", "checkpoint.async=false",
                                   "transport.chaos.rank=1", "transport.chaos.stall=true", "transport.chaos.at_op=40"});
  INFO(ended.err << ended.out);
  CHECK(ended.code == 0);
  REQUIRE(attempts_of(job).size() == 1);
  CHECK(attempts_of(job)[0].at("rank") == 1);
}

TEST_CASE("a failure that would repeat is not followed by a restart", "[program]") {
  const JobFolder job;
  const Settings settings = two_ranks + Settings{"train.learning_rate=1e30", "transport.chaos.over=shm"};
  const std::string without = job.run(settings).err;
  const Ended ended = job.run(settings + Settings{"job.restarts=3"});
  CHECK(ended.code == 1);
  CHECK(attempts_of(job).empty());
  CHECK_THAT(ended.err, Contains("the loss is NaN") &&
                            Contains("\n  the ranks are not started again, because this would happen again\n"));
  CHECK_THAT(without, Contains("the loss is NaN") && !Contains("started again"));
}

TEST_CASE("a job of one rank is restarted too", "[program]") {
  const JobFolder job;
  const Settings settings = {"train.steps=300", "checkpoint.every=20", "checkpoint.keep=0", "train.log_every=10"};
  REQUIRE(job.run(settings + Settings{"job.output=whole"}).code == 0);
  bool killed = false;
  const auto kill_once = [&](pid_t launcher, std::string_view out) {
    if (!killed && out.find("step 50/300") != std::string::npos) {
      killed = kill(children_of(launcher).at(0), SIGKILL) == 0;
    }
  };
  const Ended ended =
      run_program(job.path(), with_settings({"job.ini"}, settings + Settings{"job.restarts=1"}), kill_once);
  INFO(ended.err << ended.out);
  CHECK(ended.code == 0);
  CHECK(attempts_of(job).size() == 1);
  CHECK(weights(job.path() / "run") == weights(job.path() / "whole"));
  CHECK(computed_from(job.path() / "run", 0) == computed_from(job.path() / "whole", 0));
}

TEST_CASE("a job whose launcher was killed during a restart goes on with --resume", "[program]") {
  const JobFolder job;
  const Settings settings = two_ranks + Settings{"transport.chaos.over=shm", "checkpoint.async=false"};
  REQUIRE(job.run(settings + Settings{"job.output=whole"}).code == 0);
  const auto kill_launcher = [](pid_t launcher, std::string_view out) {
    if (out.find("; attempt 2 of") != std::string::npos) {
      kill(launcher, SIGKILL);
    }
  };
  const Ended killed = run_program(
      job.path(),
      with_settings({"job.ini"},
                    settings + Settings{"job.restarts=1", "transport.chaos.kill_rank=1", "transport.chaos.at_op=25"}),
      kill_launcher);
  REQUIRE(killed.code == -SIGKILL);
  const Ended ended = job.run(settings + Settings{"checkpoint.resume=auto"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(weights(job.path() / "run") == weights(job.path() / "whole"));
  CHECK(computed_from(job.path() / "run", 0) == computed_from(job.path() / "whole", 0));
}

namespace {

/// Runs job.ini as if this machine had four cores.
Ended run_on_four_cores(const JobFolder& job, const Settings& settings) {
  std::string script = "exec " + preloading(SHARDRUN_FOUR_CORES) + "\"$0\" job.ini";
  for (const std::string& word : with_settings({}, settings)) {
    script += fmt::format(" '{}'", word);
  }
  return run_script(job.path(), script);
}

/// With this transport, rank 3 dies whenever it starts. Jobs of two or three ranks have no such rank.
const Settings fourth_dies = {"job.ranks=2..4", "job.restarts=1", "job.transport=dying", "transport.dying.member=3",
                              "plugins.path=" + std::string(SHARDRUN_OUTSIDE_STRATEGIES)};

/// Checks the summary and the screen of a job that began with four ranks and ended with three.
void check_goes_on_with_three(const JobFolder& job, const Ended& ended, std::int64_t step) {
  REQUIRE(attempts_of(job).size() == 1);
  CHECK(attempts_of(job)[0].at("ranks") == 4);
  CHECK(attempts_of(job)[0].at("rank") == 3);
  CHECK(job.summary().at("ranks").as_array().size() == 3);
  CHECK_THAT(ended.out, Contains(fmt::format("; attempt 2 of 2 goes on after step {} with 3 ranks", step)));
}

}  // namespace

TEST_CASE("a job with a range of ranks goes on with fewer if one always dies", "[program]") {
  const JobFolder job;
  const Settings settings = {"job.strategy=dp",    "job.threads=1",      "train.steps=10",
                             "train.eval_every=5", "checkpoint.every=5", "checkpoint.keep=0"};
  REQUIRE(job.run(settings + Settings{"job.ranks=4", "job.output=whole"}).code == 0);
  const Ended ended =
      run_on_four_cores(job, settings + fourth_dies + Settings{"checkpoint.resume=whole/checkpoints/step-000005"});
  INFO(ended.err << ended.out);
  REQUIRE(ended.code == 0);
  check_goes_on_with_three(job, ended, 5);
  // The same samples in the same steps: the losses differ by rounding alone.
  const std::vector<double> losses = job.losses();
  const std::vector<json::object> whole = read_json_lines(job.path() / "whole/metrics.jsonl");
  REQUIRE(losses.size() == 5);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CHECK(std::abs(losses[i] - whole[5 + i].at("loss").to_number<double>()) < 1e-5);
  }
}

namespace {

constexpr std::int64_t rows = 24;

/// Writes samples that the loss of a batch identifies. All inputs are 0, and so are the outputs. The squares of the
/// targets of sample i add up to 2^i.
void write_named_samples(const std::filesystem::path& folder) {
  std::vector<float> inputs(rows, 0);
  std::vector<float> targets;
  for (int i = 0; i < rows; ++i) {
    const float root = std::ldexp(1.0F, i / 2);
    targets.insert(targets.end(), {root, i % 2 == 0 ? 0 : root});
  }
  const auto array = [](std::int64_t columns, const std::vector<float>& values) {
    return npy_file(fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns),
                    {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  };
  write_file(folder / "inputs.npy", array(1, inputs));
  write_file(folder / "targets.npy", array(2, targets));
}

}  // namespace

TEST_CASE("a job that goes on with fewer ranks leaves no sample out and repeats none", "[program]") {
  constexpr std::int64_t batch = 8;  // unlike four ranks, three have unequal parts of it
  const JobFolder job;
  write_named_samples(job.path());
  write_file(job.path() / "job.ini",
             fmt::format("[job]\noutput = run\nthreads = 1\nstrategy = dp\n[model]\nname = mlp\nhidden = 4\n"
                         "[data]\narrays = inputs.npy, targets.npy\nsplit = 1\nbatch = {}\n"
                         "[train]\nlearning_rate = 0.01\nschedule = constant\n[checkpoint]\nevery = 100\n",
                         batch));
  REQUIRE(job.run({"job.ranks=4", "train.steps=4"}).code == 0);
  const Ended ended = run_on_four_cores(job, Settings{"train.steps=12", "checkpoint.resume=auto"} + fourth_dies);
  INFO(ended.err << ended.out);
  REQUIRE(ended.code == 0);
  check_goes_on_with_three(job, ended, 4);

  const std::vector<double> losses = job.losses();
  REQUIRE(losses.size() == 12);
  // An epoch is three batches. The restart comes after the first batch of the second one.
  for (std::size_t first = 0; first < losses.size(); first += rows / batch) {
    std::int64_t seen = 0;
    for (std::size_t step = first; step < first + rows / batch; ++step) {
      // The loss is half the mean of a batch's squares. All of these numbers are exact.
      const auto samples = static_cast<std::int64_t>(losses[step] * 2 * batch);
      CHECK(std::popcount(static_cast<std::uint64_t>(samples)) == batch);
      CHECK((seen & samples) == 0);
      seen += samples;
    }
    CHECK(seen == (std::int64_t{1} << rows) - 1);
  }
}
