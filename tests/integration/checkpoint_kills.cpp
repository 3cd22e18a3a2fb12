// Jobs that are killed, or asked to stop, at random moments while they save checkpoints all the time.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/integration/disk.h"
#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/attacks.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using std::chrono::microseconds;
using std::chrono::steady_clock;

namespace {

/// A kind of job, and its results if nothing interrupts it.
struct Victim {
  std::vector<std::string> settings;
  microseconds duration{};
  std::string weights;
  std::vector<double> losses;
};

/// The loss of each step. A run that goes on with an evaluation writes a line without a loss.
std::vector<double> losses_of(const JobFolder& job) {
  std::vector<double> losses;
  for (const boost::json::object& line : job.metrics()) {
    if (line.contains("loss")) {
      losses.push_back(line.at("loss").to_number<double>());
    }
  }
  return losses;
}

Victim victim(const std::vector<std::string>& more) {
  Victim victim{.settings = {"train.steps=100", "train.eval_every=40", "train.sample=20", "model.dropout=0.1",
                             "checkpoint.every=3", "checkpoint.keep=2"}};
  victim.settings.insert(victim.settings.end(), more.begin(), more.end());
  const JobFolder job;
  const auto begin = steady_clock::now();
  const Ended ended = job.run(victim.settings);
  victim.duration = std::chrono::duration_cast<microseconds>(steady_clock::now() - begin);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  victim.weights = read_file(job.path() / "run/weights.safetensors");
  victim.losses = losses_of(job);
  REQUIRE(victim.losses.size() == 100);
  return victim;
}

std::vector<Victim> victims() {
  return {victim({}), victim({"job.ranks=2", "job.strategy=dp", "job.transport=tcp", "data.microbatches=3"}),
          victim({"job.ranks=2", "job.strategy=zero1", "job.transport=shm", "train.optimizer=adamw"})};
}

/// Sends a signal to the launcher, or to one of its ranks, after a while. Returns the process, 0 if all had ended.
pid_t strike(pid_t launcher, int signal, std::size_t whom, microseconds after) {
  const auto moment = steady_clock::now() + after;
  while (!ends_within(launcher, 1)) {
    if (steady_clock::now() >= moment) {
      std::vector<pid_t> all = children_of(launcher);
      all.insert(all.begin(), launcher);
      const pid_t hit = all[std::min(whom, all.size() - 1)];
      return kill(hit, signal) == 0 ? hit : 0;
    }
  }
  return 0;
}

/// A run to which a signal was sent, and how it ended.
struct Hit {
  Ended ended;
  bool was_hit = false;
  bool was_launcher = false;
};

Hit run_and_strike(const JobFolder& job, const Victim& victim, bool resumes, int signal, std::size_t whom,
                   microseconds after) {
  std::future<pid_t> striking;
  pid_t launcher = 0;
  std::vector<std::string> words = {"job.ini"};
  if (resumes) {
    words.emplace_back("--resume");
  }
  Hit hit{.ended = run_program(job.path(), with_settings(words, victim.settings), [&](pid_t process, std::string_view) {
            if (!striking.valid()) {
              launcher = process;
              striking = beside(process, [=] { return strike(process, signal, whom, after); });
            }
          })};
  const pid_t process = striking.get();
  hit.was_hit = process != 0;
  hit.was_launcher = process == launcher;
  for (const pid_t rank : ranks_below(job.path())) {  // they outlive a launcher that was killed
    CHECK(ends_soon(rank));
  }
  return hit;
}

/// Lets the job go on to its end, and checks that it has computed what an uninterrupted run does.
void check_that_it_goes_on(const JobFolder& job, const Victim& victim) {
  const Ended resumed = run_program(job.path(), with_settings({"job.ini", "--resume"}, victim.settings));
  INFO(resumed.out << resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK(read_file(job.path() / "run/weights.safetensors") == victim.weights);
  CHECK(losses_of(job) == victim.losses);
  CHECK(newest_whole(job.path() / "run/checkpoints") == 100);
  CHECK(rubbish_in(job.path() / "run/checkpoints").empty());
}

/// Checks that a run that was asked to stop has saved its last step and says how to go on, unless the signal came
/// before the program was ready for it or after its end.
void check_stop(const JobFolder& job, const Ended& ended, int signal) {
  INFO(ended.out << ended.err);
  CHECK((ended.code == 0 || ended.code == 75 || ended.code == -signal));
  if (ended.code == 75) {
    CHECK_THAT(ended.err, Contains("to go on: shardrun run job.ini") && Contains(" --resume"));
    const std::int64_t newest = newest_whole(job.path() / "run/checkpoints");
    CHECK(std::ssize(losses_of(job)) == std::max<std::int64_t>(newest, 0));
  }
}

void attack(const std::vector<int>& signals, int attacks) {
  std::mt19937 random(std::random_device{}());
  const auto up_to = [&random](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  const std::vector<Victim> all = victims();
  std::map<int, int> codes;
  std::map<std::int64_t, int> from;  ///< numbers of runs: [1] with a checkpoint, [0] without
  int hits = 0;
  int i = 0;
  for (; hits < attacks; ++i) {  // a job may have ended before it is hit
    const Victim& victim = all[static_cast<std::size_t>(i) % all.size()];
    const JobFolder job;
    const int blows = 1 + static_cast<int>(up_to(1));  // a run that goes on may be hit as well
    for (int blow = 0; blow < blows; ++blow) {
      const int signal = signals[static_cast<std::size_t>(up_to(std::ssize(signals) - 1))];
      const auto whom = static_cast<std::size_t>(signal == SIGKILL ? up_to(2) : 0);
      const microseconds after(up_to(victim.duration.count()));
      CAPTURE(i, blow, signal, whom, after.count(), victim.settings);
      const Hit hit = run_and_strike(job, victim, blow > 0, signal, whom, after);
      hits += hit.was_hit ? 1 : 0;
      ++codes[hit.ended.code];
      if (signal != SIGKILL) {
        check_stop(job, hit.ended, signal);
      }
      ++from[newest_whole(job.path() / "run/checkpoints") < 0 ? 0 : 1];
      if (hit.ended.code == 0) {
        break;
      }
    }
    CAPTURE(i, victim.settings);
    check_that_it_goes_on(job, victim);
  }
  fmt::print("{} jobs, {} hits, {} of all runs left a checkpoint; exit codes:", i, hits, from[1]);
  for (const auto& [code, count] : codes) {
    fmt::print(" {}x {}", count, code);
  }
  fmt::print("\n");
}

}  // namespace

// The moments are random, and differ from run to run. SHARDRUN_ATTACKS=200 takes some minutes.
TEST_CASE("a job killed at random moments ends with the same bits as an undisturbed job", "[random]") {
  attack({SIGKILL}, attacks(6));
}

TEST_CASE("a job that is asked to stop at random moments loses nothing", "[random]") {
  attack({SIGTERM, SIGINT}, attacks(6));
}

TEST_CASE("a second signal ends a run at once, and its older checkpoint stays") {
  for (const char* operation :
       {"fsync run/checkpoints/.step-000004.tmp/rank-0.safetensors 1", "rename run/checkpoints/.step-000004.tmp 1"}) {
    for (const std::vector<std::string>& ranks :
         std::vector<std::vector<std::string>>{{}, {"job.ranks=2", "job.strategy=dp"}}) {
      std::vector<std::string> settings = {"train.steps=1000000", "train.schedule=constant", "train.eval_every=0",
                                           "checkpoint.every=2"};
      settings.insert(settings.end(), ranks.begin(), ranks.end());
      const DiskJob job(settings);
      const Ended ended = job.run_and_hold(operation, [](pid_t process) {
        do {
          kill(process, SIGTERM);
        } while (!ends_within(process, 20));
      });
      INFO(operation << ended.out << ended.err);
      REQUIRE(job.was_met());
      CHECK((ended.code == -SIGTERM || ended.code == 128 + SIGTERM));
      for (const pid_t rank : ranks_below(job.path())) {
        CHECK(ends_soon(rank));
      }
      CHECK(newest_whole(job.checkpoints()) == 2);
    }
  }
}
