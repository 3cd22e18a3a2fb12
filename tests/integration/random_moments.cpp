#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <random>

#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

namespace {

constexpr std::size_t rank_count = 3;
constexpr std::size_t launcher_itself = rank_count;
constexpr int moments = 20;

/// What was seen of a job in which somebody was killed.
struct Sight {
  std::vector<pid_t> ranks;  ///< all that ever were, in order
  bool killed = false;       ///< whoever was to be killed still ran
  Clock::time_point when;
};

/// Stops the launcher, so that no rank is started unseen, and kills it.
void kill_launcher(pid_t launcher, Sight& sight) {
  kill(launcher, SIGSTOP);
  while (state_of(launcher) != 'T' && !ends_within(launcher, 0)) {
    sched_yield();
  }
  sight.ranks = children_of(launcher);
  sight.killed = !ends_within(launcher, 0);
  kill(launcher, SIGKILL);
}

/// Kills one of a launcher's ranks, or the launcher, a while after it was started, or as soon as there is such a rank.
Sight watch_and_kill(pid_t launcher, std::size_t victim, microseconds after) {
  const Clock::time_point moment = Clock::now() + after;
  Sight sight;
  while (!ends_within(launcher, 0)) {
    for (const pid_t rank : children_of(launcher)) {
      if (std::find(sight.ranks.begin(), sight.ranks.end(), rank) == sight.ranks.end()) {
        sight.ranks.push_back(rank);
      }
    }
    if (!sight.killed && Clock::now() >= moment) {
      sight.when = Clock::now();
      if (victim == launcher_itself) {
        kill_launcher(launcher, sight);
        break;
      }
      if (victim < sight.ranks.size()) {
        kill(sight.ranks[victim], SIGKILL);
        sight.killed = true;
      }
    }
    sched_yield();
  }
  return sight;
}

struct Run {
  Ended ended;
  Sight sight;
  Clock::time_point end;
};

Run run_and_kill(const JobFolder& job, const std::vector<std::string>& settings, std::size_t victim,
                 microseconds after) {
  std::future<Sight> sight;
  Run run;
  run.ended = run_program(job.path(), with_settings({"job.ini"}, settings), [&](pid_t launcher, std::string_view out) {
    if (out.empty()) {
      sight = std::async(std::launch::async, [=] { return watch_and_kill(launcher, victim, after); });
    }
  });
  run.end = Clock::now();
  run.sight = sight.get();
  return run;
}

void check_nothing_left(const JobFolder& job, const Sight& sight, std::size_t victim) {
  for (const pid_t rank : sight.ranks) {
    CHECK((victim == launcher_itself ? ends_soon(rank) : is_gone(rank)));
  }
  CHECK(left_of({}).empty());
  if (victim == launcher_itself || !std::filesystem::exists(job.path() / "run")) {
    return;  // what a killed launcher leaves, the next run removes
  }
  for (const auto& entry : std::filesystem::directory_iterator(job.path() / "run")) {
    const std::string name = entry.path().filename().string();
    CHECK_THAT(name, !Contains(".rank-") && !Contains(".tmp"));
  }
}

}  // namespace

// It takes minutes and its moments are never twice the same: run it by its tag.
TEST_CASE("whoever is killed at whatever moment, the job ends, with the name, and nothing is left", "[.random]") {
  std::mt19937 random(std::random_device{}());
  const auto up_to = [&random](microseconds most) {
    return microseconds(std::uniform_int_distribution<std::int64_t>(0, most.count())(random));
  };
  for (const std::string& transport : installed("transport")) {
    const std::vector<std::string> split = {"job.strategy=dp", "job.transport=" + transport,
                                            "job.ranks=" + std::to_string(rank_count), "job.threads=1"};
    std::vector<std::string> endless = split;
    endless.insert(endless.end(), {"train.steps=1000000", "train.log_every=1000000"});
    // One that saves, samples and says goodbye within the time that is drawn from.
    std::vector<std::string> brief = split;
    brief.insert(brief.end(), {"train.steps=3", "train.sample=20"});
    const Clock::time_point begin = Clock::now();
    REQUIRE(JobFolder().run(brief).code == 0);
    const auto whole = std::chrono::duration_cast<microseconds>(Clock::now() - begin);
    for (std::size_t victim = 0; victim <= launcher_itself; ++victim) {
      double longest = 0;
      int in_time = 0;
      for (int i = 0; i < moments; ++i) {
        const bool ends = i % 2 == 0;
        const microseconds after = up_to(ends ? whole : microseconds(1'500'000));
        CAPTURE(transport, victim, ends, after.count());
        const JobFolder job;
        const Run run = run_and_kill(job, ends ? brief : endless, victim, after);

        INFO(run.ended.err);
        const bool finished = ends && run.ended.code == 0;
        if (victim == launcher_itself) {
          CHECK((finished || run.ended.code == -SIGKILL));
        } else if (!finished) {
          CHECK(run.ended.code == 1);
          CHECK_THAT(run.ended.err, Contains("rank " + std::to_string(victim)) && Contains("SIGKILL") &&
                                        Contains(std::to_string(run.sight.ranks.at(victim))));
          longest = std::max(longest, std::chrono::duration<double>(run.end - run.sight.when).count());
        }
        in_time += finished ? 0 : 1;
        check_nothing_left(job, run.sight, victim);
      }
      fmt::print("{}: {} killed {} times, {} before the job had finished; longest until it had ended {:.2f} s\n",
                 transport, victim < rank_count ? "rank " + std::to_string(victim) : "the launcher", moments, in_time,
                 longest);
    }
  }
}
