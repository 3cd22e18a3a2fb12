#include "bench/restarted.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/integration/processes.h"
#include "tests/integration/program.h"

namespace shardrun::bench {
namespace {

using namespace shardrun::test;
using std::chrono::milliseconds;

/// Kills a random rank of a job after each of `pauses`, unless the job ends first. The destructor joins the thread.
class RankKiller {
 public:
  RankKiller(pid_t launcher, std::vector<milliseconds> pauses, std::uint64_t seed)
      : thread_([this, launcher, pauses = std::move(pauses), seed] {
          std::mt19937_64 random(seed);
          for (const milliseconds pause : pauses) {
            std::this_thread::sleep_for(pause);
            const std::vector<pid_t> ranks = await_children(launcher, 1);
            if (ranks.empty()) {
              return;
            }
            const pid_t victim = ranks[random() % ranks.size()];
            kills_ += !ends_within(victim, 0) && kill(victim, SIGKILL) == 0 ? 1 : 0;
          }
        }) {}
  ~RankKiller() { thread_.join(); }
  RankKiller(const RankKiller&) = delete;
  RankKiller& operator=(const RankKiller&) = delete;

  [[nodiscard]] int kills() const { return kills_; }

 private:
  std::atomic<int> kills_ = 0;
  std::thread thread_;  // last, because it uses the other members
};

std::vector<std::string> words_of(const std::string& transport, int ranks) {
  return with_settings({"job.ini"}, {"job.strategy=zero2", "job.transport=" + transport, "job.threads=1",
                                     fmt::format("job.ranks={}", ranks), "train.steps=150", "train.log_every=50",
                                     "train.eval_every=50", "checkpoint.every=3", "job.restarts=20"});
}

}  // namespace

std::string left_behind(const std::filesystem::path& folder) {
  if (const auto left = left_of({}); !left.empty()) {
    return *left.begin() + " is left";
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".tmp") || name.ends_with(".record") || name.ends_with(".removed")) {
      return entry.path().string() + " is left";
    }
  }
  return {};
}

const RestartedJobs::Result& RestartedJobs::expected(const std::string& transport) {
  const auto found = expected_.find(transport);
  if (found != expected_.end()) {
    return found->second;
  }
  const JobFolder job;
  const Ended ended = run_program(job.path(), words_of(transport, ranks_));
  if (ended.code != 0) {
    throw std::runtime_error("the job fails without a kill: " + ended.err);
  }
  return expected_[transport] = {job.summary().at("loss").to_number<double>(),
                                 read_file(job.path() / "run/weights.safetensors")};
}

Restarted RestartedJobs::run(const std::string& transport, std::mt19937_64& random) {
  const Result& right = expected(transport);
  std::vector<milliseconds> pauses(1 + random() % 3);
  for (milliseconds& pause : pauses) {
    pause = milliseconds(random() % static_cast<std::uint64_t>(latest_ms_));
  }
  const std::uint64_t seed = random();
  const JobFolder job;
  Ended ended;
  Restarted outcome;
  {
    std::optional<RankKiller> killer;
    ended = run_program(job.path(), words_of(transport, ranks_), [&](pid_t launcher, std::string_view) {
      if (!killer) {
        killer.emplace(launcher, pauses, seed);
      }
    });
    outcome.kills = killer->kills();
  }
  if (ended.code != 0) {
    outcome.problem = fmt::format("exit code {}, expected 0\n{}", ended.code, ended.err);
    return outcome;
  }
  const boost::json::object summary = job.summary();
  if (const auto* const attempts = summary.if_contains("attempts")) {
    outcome.attempts += attempts->as_array().size();
  }
  if (const double loss = summary.at("loss").to_number<double>(); loss != right.loss) {
    outcome.problem = fmt::format("loss {}, expected {}", loss, right.loss);
  } else if (read_file(job.path() / "run/weights.safetensors") != right.weights) {
    outcome.problem = "the loss is right, and the weights are others";
  } else if (!ranks_below(job.path()).empty()) {
    outcome.problem = "a rank lives on";
  } else {
    outcome.problem = left_behind(job.path() / "run");
  }
  return outcome;
}

}  // namespace shardrun::bench
