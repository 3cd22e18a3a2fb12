// Jobs whose ranks die or hang, and are started again.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <string>
#include <vector>

#include "core/device/cores.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using shardrun::device::usable_cores;
namespace json = boost::json;

namespace {

using Settings = std::vector<std::string>;

Settings operator+(Settings first, const Settings& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Two layers, dropout, microbatches of different sizes, evaluations; two ranks, over a transport that can kill.
const Settings two_ranks = {"job.ranks=2",         "job.strategy=dp",   "job.transport=chaos", "job.threads=1",
                            "data.microbatches=3", "model.dropout=0.1", "train.steps=12",      "train.eval_every=4",
                            "checkpoint.every=2",  "checkpoint.keep=0"};

/// All of metrics.jsonl that is no time.
std::vector<std::string> learnt(const std::filesystem::path& output) {
  std::vector<std::string> lines;
  for (const json::object& line : read_json_lines(output / "metrics.jsonl")) {
    std::string text;
    for (const char* key : {"step", "loss", "val_loss", "grad_norm", "lr"}) {
      text += line.contains(key) ? json::serialize(line.at(key)) + " " : "";
    }
    lines.push_back(text);
  }
  return lines;
}

std::string weights(const std::filesystem::path& output) { return read_file(output / "weights.safetensors"); }

json::array attempts_of(const JobFolder& job) {
  const json::object summary = job.summary();
  return summary.contains("attempts") ? summary.at("attempts").as_array() : json::array();
}

}  // namespace

TEST_CASE("a job whose rank dies again and again ends with the bits of one that nothing happened to", "[program]") {
  const JobFolder job;
  for (const std::string over : {"shm", "gloo"}) {
    INFO(over);
    std::filesystem::remove_all(job.path() / "whole");
    std::filesystem::remove_all(job.path() / "run/checkpoints");
    const Settings settings = two_ranks + Settings{"transport.chaos.over=" + over};
    REQUIRE(job.run(settings + Settings{"job.output=whole"}).code == 0);
    // Each attempt comes some steps further. Saves are not in the background: then all attempts do the same.
    const Ended ended = job.run(settings + Settings{"job.restarts=1", "checkpoint.async=false",
                                                    "transport.chaos.kill_rank=1", "transport.chaos.at_op=25"});
    INFO(ended.err << ended.out);
    REQUIRE(ended.code == 0);
    CHECK(weights(job.path() / "run") == weights(job.path() / "whole"));
    CHECK(learnt(job.path() / "run") == learnt(job.path() / "whole"));
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
  // The next run that begins at the start keeps nothing of them.
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

TEST_CASE("a rank that hangs is a reason to start again", "[program]") {
  const JobFolder job;
  const Ended ended =
      job.run(two_ranks + Settings{"job.restarts=1", "job.timeout=1", "checkpoint.async=false",
                                   "transport.chaos.rank=1", "transport.chaos.stall=true", "transport.chaos.at_op=40"});
  INFO(ended.err << ended.out);
  CHECK(ended.code == 0);
  REQUIRE(attempts_of(job).size() == 1);
  CHECK(attempts_of(job)[0].at("rank") == 1);
}

TEST_CASE("a failure that would repeat is not a reason to start again", "[program]") {
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

TEST_CASE("the only rank of a job is started again too", "[program]") {
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
  CHECK(learnt(job.path() / "run") == learnt(job.path() / "whole"));
}

TEST_CASE("a job whose launcher was killed while it started the ranks again goes on by --resume", "[program]") {
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
  CHECK(learnt(job.path() / "run") == learnt(job.path() / "whole"));
}

TEST_CASE("a job with a range of ranks goes on with fewer where one always dies", "[program]") {
  const std::int64_t most = std::min<std::int64_t>(4, usable_cores());
  if (most < 2) {
    return;  // a range begins with as many ranks as there are cores
  }
  const JobFolder job;
  const Settings settings = {"job.strategy=dp",
                             "job.threads=1",
                             "train.steps=10",
                             "train.eval_every=5",
                             "checkpoint.every=5",
                             "checkpoint.keep=0",
                             "plugins.path=" + std::string(SHARDRUN_OUTSIDE_STRATEGIES)};
  const auto with_ranks = [&](std::int64_t ranks) { return settings + Settings{fmt::format("job.ranks={}", ranks)}; };
  REQUIRE(job.run(with_ranks(most) + Settings{"job.output=whole"}).code == 0);
  const Settings later = {"checkpoint.resume=whole/checkpoints/step-000005"};
  const Ended ended = job.run(settings + later +
                              Settings{fmt::format("job.ranks=1..{}", most), "job.restarts=1", "job.transport=dying",
                                       fmt::format("transport.dying.member={}", most - 1)});
  INFO(ended.err << ended.out);
  REQUIRE(ended.code == 0);
  REQUIRE(attempts_of(job).size() == 1);
  CHECK(attempts_of(job)[0].at("ranks") == most);
  CHECK(job.summary().at("ranks").as_array().size() == static_cast<std::size_t>(most - 1));
  CHECK_THAT(ended.out, Contains(fmt::format("; attempt 2 of 2 goes on after step 5 with {} rank", most - 1)));
  // The same samples in the same steps: the losses differ by rounding alone.
  const std::vector<double> losses = job.losses();
  const std::vector<json::object> whole = read_json_lines(job.path() / "whole/metrics.jsonl");
  REQUIRE(losses.size() == 5);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CHECK(std::abs(losses[i] - whole[5 + i].at("loss").to_number<double>()) < 1e-5);
  }
}
