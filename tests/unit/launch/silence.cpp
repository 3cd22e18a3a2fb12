#include <csignal>

#include "core/launch/status.h"
#include "tests/support/catch.h"
#include "tests/unit/launch/job.h"

using namespace shardrun::launch;
using shardrun::test::cause_of;
using shardrun::test::LaunchJob;
using std::chrono::milliseconds;

TEST_CASE("a stopped rank is noticed by its silence, named and ended", "[launch]") {
  LaunchJob job(3, {"wait"});
  job.settings.heartbeat_interval = milliseconds(60000);  // sooner, or the others would be as silent
  job.settings.heartbeat_timeout = milliseconds(1500);
  job.then = [&job](const LaunchJob::Text& line) {
    if (line.text == "ready" && job.all_said("ready")) {
      shardrun::test::stop_process(job.pids[2]);
    }
  };
  const LaunchResult result = job.run();
  REQUIRE(result.cause);
  CHECK(result.exit_code == 1);
  CHECK(result.cause->rank == 2);
  CHECK(result.cause->text.starts_with("has not answered for 1."));
  CHECK_FALSE(result.cause->exit_code);
  CHECK(result.cause->signal == 0);
  CHECK(result.ranks[2].killed);
  CHECK(result.ranks[0].failure == FailureKind::consequence);
}

TEST_CASE("a rank that does not join is noticed", "[launch]") {
  LaunchJob job(2, {"silent"});
  job.settings.join_timeout = milliseconds(100);
  const LaunchResult result = job.run();
  CHECK(cause_of(result).find("has not joined the job within 0.") != std::string::npos);
}

TEST_CASE("a rank that lives on without its connection is reported, and one that ends is not", "[launch]") {
  LaunchJob lives(1, {"hang_up"});
  lives.then_notice = [&](const std::string&) { ::kill(lives.pids[0], SIGKILL); };
  CHECK(cause_of(lives.run()).find("SIGKILL") != std::string::npos);
  REQUIRE(lives.notices.size() == 1);
  CHECK(lives.notices[0].find("its control connection ended: it was closed by the other side") != std::string::npos);
  CHECK(lives.logged(lives.notices[0]));

  LaunchJob ends(2, {"code", "7", "1"});
  CHECK(ends.run().exit_code == 1);
  CHECK(ends.notices.empty());
}

TEST_CASE("a rank that said goodbye and does not end is noticed", "[launch]") {
  LaunchJob job(1, {"linger"});
  job.settings.heartbeat_interval = milliseconds(50);
  job.settings.heartbeat_timeout = milliseconds(400);
  const LaunchResult result = job.run();
  CHECK(cause_of(result).starts_with("[0] said goodbye, but has not ended 0."));
}

TEST_CASE("time in which the launcher stood still does not count as a rank's silence", "[launch]") {
  using std::chrono::seconds;
  CHECK(time_held_up(seconds(1), seconds(1)) == seconds(0));
  CHECK(time_held_up(seconds(2), seconds(1)) == seconds(0));
  CHECK(time_held_up(seconds(3600), seconds(1)) == seconds(3598));
}
