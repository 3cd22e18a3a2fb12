#include <unistd.h>

#include <csignal>

#include "tests/support/catch.h"
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
  for (const int signal : {SIGINT, SIGTERM}) {
    LaunchJob job(3, {"stop"});
    signal_when_all_wait(job, {signal});
    const LaunchResult result = job.run();
    CHECK(result.exit_code == 128 + signal);
    CHECK(result.stop_signal == signal);
    CHECK(cause_of(result) == "none");
    REQUIRE(job.messages.size() == 3);
    for (const LaunchJob::Text& message : job.messages) {
      CHECK(message.text == "stopped: " + std::to_string(signal));
    }
  }
}

TEST_CASE("a second signal ends ranks that do not stop", "[launch]") {
  LaunchJob job(2, {"stop", "deaf"});
  signal_when_all_wait(job, {SIGINT, SIGINT});
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 128 + SIGINT);
  CHECK(cause_of(result) == "none");
  CHECK(result.ranks[0].signal == SIGTERM);
  CHECK(result.ranks[1].signal == SIGTERM);
}

TEST_CASE("a second signal ends even a stopped rank, after the grace", "[launch]") {
  LaunchJob job(2, {"stop", "deaf"});
  job.settings.grace = std::chrono::milliseconds(100);
  job.then = [&job](const LaunchJob::Text& line) {
    if (line.text == "ready" && job.all_said("ready")) {
      shardrun::test::stop_process(job.pids[1]);
      ::kill(::getpid(), SIGTERM);
      ::kill(::getpid(), SIGTERM);
    }
  };
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 128 + SIGTERM);
  CHECK(result.ranks[0].signal == SIGTERM);
  CHECK(result.ranks[1].signal == SIGKILL);
}
