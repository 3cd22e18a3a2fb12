// Runs jobs one after the other, kills a random rank of each at a random time, and counts how many end correctly: soon,
// with exit code 1, with the killed rank as the root cause, without a process or file left behind. A job that ended
// before the kill is counted separately.
//
// With --restarts, jobs start their killed ranks again. They end correctly if they have the same loss as
// without a kill.

#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bench/restarted.h"
#include "tests/integration/processes.h"
#include "tests/integration/program.h"

namespace {

using namespace shardrun::test;

struct Settings {
  int jobs = 0;  ///< 0: 200 jobs, or 60 with restarts
  bool restarts = false;
  int ranks = 4;
  std::uint64_t seed = 1;
  int latest_ms = 1500;
  std::vector<std::string> transports;
};

/// How a job ended. `problem` is empty if it ended correctly.
struct Outcome {
  bool was_hit = false;
  double ending_s = 0;  ///< seconds that ending took, as the job reports them
  std::string problem;
};

/// Kills one rank of a job after a pause, unless the job ends first. The destructor joins the thread.
class Killer {
 public:
  Killer(pid_t launcher, std::size_t ranks, std::size_t victim, std::chrono::milliseconds after)
      : thread_([=, this] {
          std::this_thread::sleep_for(after);
          ranks_ = await_children(launcher, ranks);
          if (!ranks_.empty()) {
            victim_ = ranks_[victim];
            was_hit_ = !ends_within(victim_, 0) && kill(victim_, SIGKILL) == 0;
          }
        }) {}

  void join() { thread_.join(); }
  [[nodiscard]] bool was_hit() const { return was_hit_; }
  [[nodiscard]] pid_t victim() const { return victim_; }
  [[nodiscard]] const std::vector<pid_t>& ranks() const { return ranks_; }

 private:
  std::vector<pid_t> ranks_;
  pid_t victim_ = 0;
  bool was_hit_ = false;
  std::thread thread_;  // last, because it uses the other members
};

std::string leftover(const JobFolder& job, const std::vector<pid_t>& ranks) {
  for (const pid_t rank : ranks) {
    if (!is_gone(rank)) {
      return fmt::format("process {} lives on", rank);
    }
  }
  return shardrun::bench::left_behind(job.path() / "run");
}

std::string fault_of(const Ended& ended, const Killer& killer, std::size_t victim) {
  const std::string named = fmt::format("shardrun: rank {} (pid {} on ", victim, killer.victim());
  if (ended.code != 1) {
    return fmt::format("exit code {}, expected 1", ended.code);
  }
  if (!ended.err.starts_with(named) || ended.err.find("SIGKILL") == std::string::npos) {
    return fmt::format("another root cause than '{}…'", named);
  }
  return {};
}

Outcome run_one(const Settings& settings, const std::string& transport, std::size_t victim,
                std::chrono::milliseconds after) {
  const JobFolder job;
  std::optional<Killer> killer;
  const std::vector<std::string> words =
      with_settings({"job.ini"}, {"job.strategy=zero3", "job.transport=" + transport, "job.threads=1",
                                  fmt::format("job.ranks={}", settings.ranks), "train.steps=1000000"});
  const Ended ended = run_program(job.path(), words, [&](pid_t launcher, std::string_view) {
    if (!killer) {
      killer.emplace(launcher, static_cast<std::size_t>(settings.ranks), victim, after);
    }
  });
  killer->join();
  Outcome outcome{.was_hit = killer->was_hit()};
  outcome.problem = outcome.was_hit ? fault_of(ended, *killer, victim) : "it ended before it was hit: " + ended.err;
  if (outcome.problem.empty()) {
    outcome.problem = leftover(job, killer->ranks());
    outcome.ending_s = job.summary().at("ending_s").to_number<double>();
  }
  if (!outcome.problem.empty()) {
    outcome.problem += "\n" + ended.err;
  }
  return outcome;
}

int soak(const Settings& settings) {
  std::mt19937_64 random(settings.seed);
  std::vector<double> endings;
  int clean = 0;
  for (int i = 0; i < settings.jobs; ++i) {
    const std::string& transport = settings.transports[static_cast<std::size_t>(i) % settings.transports.size()];
    const std::size_t victim = random() % static_cast<std::size_t>(settings.ranks);
    const std::chrono::milliseconds after(random() % static_cast<std::uint64_t>(settings.latest_ms));
    const Outcome outcome = run_one(settings, transport, victim, after);
    if (outcome.problem.empty()) {
      ++clean;
      endings.push_back(outcome.ending_s);
    } else {
      fmt::print("job {} over {}, rank {} killed after {} ms: {}\n", i, transport, victim, after.count(),
                 outcome.problem);
    }
    std::fflush(stdout);
  }
  std::sort(endings.begin(), endings.end());
  fmt::print("{} of {} jobs ended cleanly", clean, settings.jobs);
  if (!endings.empty()) {
    fmt::print("; from the first sign of the death to the last rank's end: median {:.0f} ms, most {:.0f} ms",
               1e3 * endings[endings.size() / 2], 1e3 * endings.back());
  }
  fmt::print("\n");
  const bool all_soon = endings.empty() || endings.back() <= 1;
  return clean == settings.jobs && all_soon ? 0 : 1;
}

int soak_restarts(const Settings& settings) {
  std::mt19937_64 random(settings.seed);
  shardrun::bench::RestartedJobs jobs(settings.ranks, settings.latest_ms);
  int right = 0;
  int kills = 0;
  std::size_t attempts = 0;
  for (int i = 0; i < settings.jobs; ++i) {
    const std::string& transport = settings.transports[static_cast<std::size_t>(i) % settings.transports.size()];
    const shardrun::bench::Restarted outcome = jobs.run(transport, random);
    kills += outcome.kills;
    attempts += outcome.attempts;
    if (outcome.problem.empty()) {
      ++right;
    } else {
      fmt::print("job {} over {}, {} kills, {} attempts: {}\n", i, transport, outcome.kills, outcome.attempts,
                 outcome.problem);
    }
    std::fflush(stdout);
  }
  fmt::print("{} of {} jobs ended with the right loss and weights; {} kills, {} attempts\n", right, settings.jobs,
             kills, attempts);
  return right == settings.jobs ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  namespace options = boost::program_options;
  Settings settings;
  options::options_description all(
      "soak: jobs in a row, a random rank of each killed at a random time; exit code 1 "
      "unless all end as they should, within a second; or, with --restarts, with the right loss");
  all.add_options()("help", "print this")  //
      ("jobs", options::value(&settings.jobs)->default_value(settings.jobs, "200, or 60 with --restarts"),
       "how many")  //
      ("restarts", options::bool_switch(&settings.restarts),
       "jobs that start their ranks again; each is killed one to three times")                      //
      ("ranks", options::value(&settings.ranks)->default_value(settings.ranks), "of each job")      //
      ("seed", options::value(&settings.seed)->default_value(settings.seed), "of ranks and times")  //
      ("latest", options::value(&settings.latest_ms)->default_value(settings.latest_ms),
       "milliseconds from a job's start, or from the last kill, up to which its rank is killed")  //
      ("transport", options::value(&settings.transports)->multitoken()->default_value({"shm", "tcp"}, "shm tcp"),
       "one job after the other");
  try {
    options::variables_map given;
    options::store(options::parse_command_line(argc, argv, all), given);
    options::notify(given);
    if (given.count("help") != 0) {
      std::ostringstream text;
      text << all;
      fmt::print("{}", text.str());
      return 0;
    }
    settings.jobs = settings.jobs != 0 ? settings.jobs : settings.restarts ? 60 : 200;
    if (settings.jobs < 1 || settings.ranks < 2 || settings.latest_ms < 1 || settings.transports.empty()) {
      fmt::print(stderr, "soak: --jobs and --latest are at least 1, --ranks at least 2\n");
      return 2;
    }
    return settings.restarts ? soak_restarts(settings) : soak(settings);
  } catch (const options::error& error) {
    fmt::print(stderr, "soak: {}; --help shows the options\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak: {}\n", error.what());
    return 1;
  }
}
