#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>
#include <thread>

#include "core/launch/process.h"
#include "core/launch/signals.h"
#include "core/launch/status.h"
#include "tests/support/catch.h"
#include "tests/support/processes.h"
#include "tests/unit/launch/job.h"

using namespace shardrun::launch;
using shardrun::test::cause_of;
using shardrun::test::LaunchJob;

namespace {

void signal_when_all_wait(LaunchJob& job, std::vector<int> signals) {
  job.then = [&job, signals](const LaunchJob::Text& line) {
    if (line.text == "ready" && job.all_said("ready")) {
      for (const int signal : signals) {
        ::kill(::getpid(), signal);
      }
    }
  };
}

}  // namespace

TEST_CASE("a signal reaches every rank once as a request to stop", "[launch]") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    LaunchJob job(3, {"stop"});
    signal_when_all_wait(job, {signal});
    const LaunchResult result = job.run();
    CHECK(result.exit_code == 128 + signal);
    CHECK(result.stop_signal == signal);
    CHECK(cause_of(result) == "none");
    REQUIRE(job.notices.size() == 1);
    CHECK(job.notices[0] == stop_notice(signal));
    CHECK(job.logged(job.notices[0]));
    REQUIRE(job.messages.size() == 3);
    for (const LaunchJob::Text& message : job.messages) {
      CHECK(message.text == "stopped: " + std::to_string(signal));
    }
  }
}

TEST_CASE("a rank leaves SIGTERM to its launcher", "[launch]") {
  const int asked = GENERATE(SIGTERM, SIGHUP);
  LaunchJob job(3, {"stop"});
  job.then = [&](const LaunchJob::Text& line) {
    if (line.text == "ready" && job.all_said("ready")) {
      for (const pid_t rank : job.pids) {
        ::kill(rank, SIGTERM);
      }
      ::kill(::getpid(), asked);
    }
  };
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 128 + asked);
  CHECK(cause_of(result) == "none");
  REQUIRE(job.messages.size() == 3);
  for (const LaunchJob::Text& message : job.messages) {
    CHECK(message.text == "stopped: " + std::to_string(asked));
  }
}

TEST_CASE("two equal signals at once ask to stop once", "[launch]") {
  LaunchJob job(3, {"stop"});
  signal_when_all_wait(job, {SIGTERM, SIGTERM});
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 128 + SIGTERM);
  CHECK(result.stop_signal == SIGTERM);
  CHECK(result.forced_signal == 0);
  CHECK(job.messages.size() == 3);
}

TEST_CASE("the same signal again later ends the ranks at once", "[launch]") {
  // The last signal may come when the job is over and nothing catches it any more.
  void (*const before)(int) = ::signal(SIGTERM, [](int) {});
  LaunchJob job(2, {"stop", "deaf"});
  std::jthread asking;
  job.then = [&](const LaunchJob::Text& line) {
    if (line.text == "ready" && job.all_said("ready")) {
      asking = std::jthread([](const std::stop_token& is_over) {
        while (!is_over.stop_requested()) {
          ::kill(::getpid(), SIGTERM);
          std::this_thread::sleep_for(same_request + std::chrono::milliseconds(100));  // so that it asks anew
        }
      });
    }
  };
  const LaunchResult result = job.run();
  asking = {};
  ::signal(SIGTERM, before);
  CHECK(result.exit_code == 128 + SIGTERM);
  CHECK(result.forced_signal == SIGTERM);
}

TEST_CASE("a second signal ends ranks that do not stop", "[launch]") {
  LaunchJob job(2, {"stop", "deaf"});
  signal_when_all_wait(job, {SIGTERM, SIGINT});
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 128 + SIGINT);
  CHECK(cause_of(result) == "none");
  CHECK(result.ranks[0].signal == SIGKILL);
  CHECK(result.ranks[1].signal == SIGKILL);
  CHECK(job.notices.back() == "ending the ranks now, by signal 2 (SIGINT)");
}

TEST_CASE("a second signal ends a suspended rank, too", "[launch]") {
  LaunchJob job(2, {"stop", "deaf"});
  job.then = [&job](const LaunchJob::Text& line) {
    if (line.text == "ready" && job.all_said("ready")) {
      shardrun::test::stop_process(job.pids[1]);
      ::kill(::getpid(), SIGINT);
      ::kill(::getpid(), SIGTERM);
    }
  };
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 128 + SIGTERM);
  CHECK(result.ranks[0].signal == SIGKILL);
  CHECK(result.ranks[1].signal == SIGKILL);
}

TEST_CASE("a signal that was ignored before stays so", "[launch]") {
  const int ignored = GENERATE(SIGINT, SIGHUP);
  void (*const before)(int) = ::signal(ignored, SIG_IGN);
  {
    LaunchJob job(2, {"stop"});
    signal_when_all_wait(job, {ignored, SIGTERM});
    const LaunchResult result = job.run();
    CHECK(result.exit_code == 128 + SIGTERM);
    CHECK(result.stop_signal == SIGTERM);
    CHECK(result.forced_signal == 0);
  }
  ::signal(ignored, before);
}

namespace {

/// Reads the ranks' output from its beginning until all of them have written the line.
void await_lines(const StartedProcess& launcher, std::string& output, const std::string& line, std::size_t ranks) {
  const auto count = [&] {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = output.find(line + "\n", at)) != std::string::npos; ++at) {
      ++found;
    }
    return found;
  };
  while (count() < ranks) {
    std::array<char, 64> chunk = {};
    const ssize_t got = ::read(launcher.output.get(), chunk.data(), chunk.size());
    REQUIRE(got > 0);
    output.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

StartedProcess start_launcher(std::vector<std::string> what) {
  what.insert(what.begin(), {"rank", "parent", "3"});
  return start_process({.program = SHARDRUN_RANK_PROGRAM, .arguments = std::move(what), .environment = {}});
}

int exit_code_of(const StartedProcess& launcher) {
  int status = 0;
  REQUIRE(::waitpid(launcher.pid, &status, 0) == launcher.pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("Ctrl-Z stops the launcher once its ranks pause, and all go on together each time", "[launch]") {
  const StartedProcess launcher = start_launcher({"stop"});
  std::string output;
  await_lines(launcher, output, "ready", 3);
  const std::vector<pid_t> ranks = shardrun::test::children_of(launcher.pid);
  REQUIRE(ranks.size() == 3);

  for (std::size_t time = 1; time <= 2; ++time) {
    ::kill(launcher.pid, SIGTSTP);
    siginfo_t stopped = {};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(launcher.pid), &stopped, WSTOPPED) == 0);
    CHECK(stopped.si_status == SIGTSTP);
    for (const pid_t rank : ranks) {
      CHECK(shardrun::test::state_of(rank) != 'T');
    }
    CHECK(std::count(output.begin(), output.end(), '\n') == static_cast<std::ptrdiff_t>(3 * time));

    ::kill(launcher.pid, SIGCONT);
    await_lines(launcher, output, "goes on", 3 * time);
  }
  ::kill(launcher.pid, SIGHUP);
  CHECK(exit_code_of(launcher) == 128 + SIGHUP);
}

TEST_CASE("Ctrl-Z does not stop a launcher that no shell could continue", "[launch]") {
  const StartedProcess outer = start_launcher({"stop", "orphaned"});
  std::string output;
  await_lines(outer, output, "ready", 3);
  const std::vector<pid_t> launcher = shardrun::test::children_of(outer.pid);
  REQUIRE(launcher.size() == 1);

  ::kill(launcher[0], SIGTSTP);
  await_lines(outer, output, "goes on", 3);

  ::kill(launcher[0], SIGHUP);
  CHECK(exit_code_of(outer) == 128 + SIGHUP);
}
