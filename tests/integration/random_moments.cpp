#include <fmt/format.h>

#include <chrono>
#include <random>
#include <thread>

#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t rank_count = 3;
constexpr int moments = 10;

/// Kills the launcher, or one of its ranks, a while after the launcher was started.
class Killer {
 public:
  Killer(pid_t launcher, std::size_t victim, std::chrono::milliseconds after)
      : thread_([this, launcher, victim, after] {
          std::this_thread::sleep_for(after);
          while (ranks_.size() <= std::min(victim, rank_count - 1) && !is_gone(launcher)) {
            ranks_ = children_of(launcher);
            std::this_thread::yield();
          }
          if (victim < ranks_.size() || victim == rank_count) {
            when_ = Clock::now();
            kill(victim < rank_count ? ranks_[victim] : launcher, SIGKILL);
          }
        }) {}

  struct Report {
    std::vector<pid_t> ranks;  ///< as far as they were started
    Clock::time_point when;
  };

  Report report() {
    thread_.join();
    return {ranks_, when_};
  }

 private:
  std::vector<pid_t> ranks_;
  Clock::time_point when_;
  std::thread thread_;
};

}  // namespace

// It takes minutes and its moments are never twice the same: run it by its tag.
TEST_CASE("whoever is killed at whatever moment, the job ends, with the name, and nothing is left", "[.random]") {
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<int> moment(0, 1500);
  for (const std::string& transport : installed("transport")) {
    for (std::size_t victim = 0; victim <= rank_count; ++victim) {
      double longest = 0;
      for (int i = 0; i < moments; ++i) {
        const std::chrono::milliseconds after(moment(random));
        CAPTURE(transport, victim, after.count());
        const JobFolder job;
        std::unique_ptr<Killer> killer;
        const Ended ended = run_program(
            job.path(),
            with_settings({"job.ini"}, {"job.strategy=dp", "job.transport=" + transport,
                                        "job.ranks=" + std::to_string(rank_count), "job.threads=1",
                                        "train.steps=1000000", "train.log_every=1000000"}),
            [&](pid_t launcher, std::string_view out) {
              if (out.empty()) {
                killer = std::make_unique<Killer>(launcher, victim, after);
              }
            });
        const auto end = Clock::now();
        const Killer::Report killed = killer->report();

        INFO(ended.err);
        CHECK(ended.code == (victim == rank_count ? -SIGKILL : 1));
        if (victim < rank_count) {
          CHECK_THAT(ended.err, Contains("rank " + std::to_string(victim)) && Contains("SIGKILL") &&
                                    Contains(std::to_string(killed.ranks.at(victim))));
          longest = std::max(longest, std::chrono::duration<double>(end - killed.when).count());
        }
        for (const pid_t rank : killed.ranks) {
          CHECK((victim < rank_count ? is_gone(rank) : ends_soon(rank)));
        }
        CHECK(left_of({}).empty());
      }
      fmt::print("{}: {} killed {} times; longest until the job had ended {:.2f} s\n", transport,
                 victim < rank_count ? "rank " + std::to_string(victim) : "the launcher", moments, longest);
    }
  }
}
