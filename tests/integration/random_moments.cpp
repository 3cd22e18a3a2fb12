#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <random>

#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/attacks.h"
#include "tests/support/catch.h"
#include "tests/support/mpirun.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

namespace {

constexpr int rank_count = 3;
constexpr int longest_end_ms = 30'000;  ///< from a blow to the end of the job; later is a hang

enum class Victim { rank, all_ranks, launcher, both };

/// A signal, and who gets it.
struct Blow {
  std::string transport;
  Victim victim;
  int signal;

  /// Whether the signal is ignored: ranks that shardrun started leave requests to stop to their launcher.
  [[nodiscard]] bool is_ignored() const {
    return signal != SIGKILL && transport != "mpi" && (victim == Victim::rank || victim == Victim::all_ranks);
  }

  [[nodiscard]] std::string text() const {
    const char* const whom = victim == Victim::rank        ? "one rank"
                             : victim == Victim::all_ranks ? "all ranks"
                             : victim == Victim::launcher  ? "the launcher"
                                                           : "the launcher and one rank";
    return fmt::format("{}: SIG{} to {}", transport, sigabbrev_np(signal), whom);
  }
};

/// The processes that work in a folder, whoever started them.
std::vector<pid_t> processes_in(const std::filesystem::path& folder) {
  std::vector<pid_t> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", none)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos &&
        std::filesystem::read_symlink(entry.path() / "cwd", none) == std::filesystem::canonical(folder)) {
      found.push_back(std::stoi(name));
    }
  }
  return found;
}

/// What was seen of a job that was hit.
struct Sight {
  std::vector<pid_t> hit;
  bool was_late = false;  ///< the job had ended before
  bool hung = false;
  /// Of all processes of the job, only mpirun itself was left. If a rank dies while it connects to Open MPI's launcher,
  /// the launcher waits forever.
  bool mpirun_hung = false;
  std::string alive;  ///< the processes that were alive then
};

/// Sends the signal some time after the launcher was started, or as soon as there is a process to send it to. `rank`: a
/// number among the ranks that run.
Sight strike(const JobFolder& job, pid_t launcher, const Blow& blow, std::size_t rank, microseconds after) {
  const Clock::time_point moment = Clock::now() + after;
  Sight sight;
  while (sight.hit.empty() && !ends_within(launcher, 1)) {
    if (Clock::now() >= moment) {
      std::vector<pid_t> ranks = descendants_of(launcher);
      if (blow.victim == Victim::launcher || blow.victim == Victim::both) {
        sight.hit.push_back(launcher);
      }
      if (blow.victim == Victim::all_ranks) {
        sight.hit.insert(sight.hit.end(), ranks.begin(), ranks.end());
      } else if (blow.victim != Victim::launcher && rank < ranks.size()) {
        sight.hit.push_back(ranks[rank]);
      }
      for (const pid_t each : sight.hit) {
        kill(each, blow.signal);
      }
    }
  }
  sight.was_late = sight.hit.empty();
  if (!ends_within(launcher, longest_end_ms)) {
    sight.mpirun_hung = blow.transport == "mpi" && processes_in(job.path()) == std::vector<pid_t>{launcher};
    sight.hung = !sight.mpirun_hung;
    for (const pid_t each : processes_in(job.path())) {
      std::string command = read_file("/proc/" + std::to_string(each) + "/cmdline");
      std::replace(command.begin(), command.end(), '\0', ' ');
      sight.alive += fmt::format("{} {} {}\n", each, state_of(each), command);
      kill(each, SIGKILL);
    }
  }
  return sight;
}

std::string script_of(const Blow& blow, bool ends) {
  const std::string settings =
      fmt::format(" --set job.strategy=dp --set job.transport={} --set job.ranks={} --set job.threads=1 --set {}",
                  blow.transport, rank_count, ends ? "train.steps=3 --set train.sample=20" : "train.steps=1000000");
  const std::string start = blow.transport == "mpi" ? fmt::format("{} -n {} ", mpirun, rank_count) : "";
  return fmt::format("exec env {}\"$0\" job.ini{}", start, settings);
}

/// Checks how the job ended. If another launcher decides that, a job that does not end by itself must have failed.
void check_end(const Blow& blow, const Sight& sight, const Ended& ended, bool ends) {
  const bool finished = ended.code == 0;
  CHECK((ends || !finished));
  if (blow.transport == "mpi" || sight.was_late) {
    return;
  }
  if (blow.victim == Victim::launcher) {
    // Before the program is loaded, or has its handlers, a signal ends it.
    CHECK((finished || ended.code == -blow.signal || ended.code == 128 + blow.signal));
  } else if (blow.victim == Victim::both) {
    CHECK((finished || ended.code == -blow.signal || ended.code == 128 + blow.signal || ended.code == 1));
  } else if (blow.is_ignored()) {
    CHECK(finished);
  } else if (!finished) {
    CHECK(ended.code == 1);
    CHECK_THAT(ended.err, Contains("shardrun: rank ") && Contains(std::string("SIG") + sigabbrev_np(blow.signal)));
  }
}

std::vector<Blow> all_blows() {
  std::vector<std::string> transports = installed("transport");
  if (has_mpirun()) {
    transports.emplace_back("mpi");
  }
  std::vector<Blow> blows;
  for (const int signal : {SIGKILL, SIGTERM, SIGHUP, SIGINT}) {
    for (const Victim victim : {Victim::rank, Victim::all_ranks, Victim::launcher, Victim::both}) {
      for (const std::string& transport : transports) {
        blows.push_back({transport, victim, signal});
      }
    }
  }
  return blows;
}

}  // namespace

// The moments are random, and differ from run to run: run it by its tag, with SHARDRUN_ATTACKS=1000.
TEST_CASE("after any signal to any process at any moment, the job ends and no process is left", "[.random]") {
  std::mt19937 random(std::random_device{}());
  const auto up_to = [&random](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  std::vector<Blow> blows = all_blows();
  if (const char* const only = std::getenv("SHARDRUN_ATTACKED")) {  // one transport
    std::erase_if(blows, [&](const Blow& blow) { return blow.transport != only; });
  }
  std::map<std::string, microseconds> whole;  // the time that a job takes which ends by itself
  int hung = 0;
  int mpirun_hung = 0;
  int late = 0;
  int left = 0;
  double longest = 0;
  const int kills = attacks(static_cast<int>(blows.size()));
  for (int i = 0; i < kills; ++i) {
    const Blow& blow = blows[static_cast<std::size_t>(i) % blows.size()];
    if (!whole.contains(blow.transport)) {
      const Clock::time_point begin = Clock::now();
      const JobFolder job;
      REQUIRE(run_script(job.path(), script_of(blow, true)).code == 0);
      whole[blow.transport] = std::chrono::duration_cast<microseconds>(Clock::now() - begin);
    }
    const bool ends = up_to(1) == 0 || blow.is_ignored();
    const bool starts = up_to(1) == 0;
    const microseconds after(up_to(whole[blow.transport].count() / (starts ? 3 : 1)));
    const auto rank = static_cast<std::size_t>(up_to(rank_count - 1));
    CAPTURE(i, blow.text(), ends, rank, after.count());
    const JobFolder job;
    std::future<Sight> striking;
    const Ended ended = run_script(job.path(), script_of(blow, ends), [&](pid_t launcher, std::string_view) {
      if (!striking.valid()) {
        striking = beside(launcher, [&, launcher] { return strike(job, launcher, blow, rank, after); });
      }
    });
    const Clock::time_point end = Clock::now();
    const Sight sight = striking.get();

    INFO(ended.err << sight.alive);
    CHECK_FALSE(sight.hung);
    if (sight.mpirun_hung) {
      WARN("mpirun alone hung");
    }
    check_end(blow, sight, ended, ends);
    const std::vector<pid_t> over = processes_in(job.path());
    bool is_left = false;
    for (const pid_t each : over) {
      if (!ends_within(each, 10'000)) {
        is_left = true;
        kill(each, SIGKILL);
      }
    }
    CHECK_FALSE(is_left);
    longest = std::max(longest, std::chrono::duration<double>(Clock::now() - end).count());
    hung += sight.hung ? 1 : 0;
    mpirun_hung += sight.mpirun_hung ? 1 : 0;
    late += sight.was_late ? 1 : 0;
    left += is_left ? 1 : 0;
  }
  CHECK(left_of({}).empty());
  fmt::print(
      "{} kills, {} after the end: {} hung, {} left processes, in {} mpirun alone hung; the last process was gone "
      "{:.2f} s "
      "after its job\n",
      kills, late, hung, left, mpirun_hung, longest);
}
