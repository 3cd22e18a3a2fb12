#include <algorithm>
#include <csignal>

#include "core/launch/job_watch.h"
#include "tests/support/catch.h"
#include "tests/unit/launch/job.h"

using namespace shardrun::launch;
using Catch::Matchers::Contains;
using shardrun::test::cause_of;
using shardrun::test::LaunchJob;

namespace {

pid_t pid_of(const LaunchJob& job, int rank) { return job.pids[static_cast<std::size_t>(rank)]; }

void kill_when_all_wait(LaunchJob& job, int rank, int signal) {
  job.then = [&job, rank, signal](const LaunchJob::Text& line) {
    if (line.text == "ready" && job.all_said("ready")) {
      ::kill(pid_of(job, rank), signal);
    }
  };
}

const std::string killed = "was killed by signal 9 (SIGKILL): by somebody, or by the system because memory ran out";

}  // namespace

TEST_CASE("ranks that exchange keys and say goodbye end with 0", "[launch]") {
  LaunchJob job(4, {"exchange"});
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 0);
  CHECK(cause_of(result) == "none");
  CHECK(job.messages.size() == 16);
  for (int rank = 0; rank < 4; ++rank) {
    const RankEnd& end = result.ranks.at(static_cast<std::size_t>(rank));
    CHECK(end.exit_code == 0);
    CHECK(end.said_goodbye);
    CHECK(end.pid == pid_of(job, rank));
    for (int other = 0; other < 4; ++other) {
      const LaunchJob::Text read{rank, "read: value of " + std::to_string(other)};
      CHECK(std::count(job.messages.begin(), job.messages.end(), read) == 1);
    }
  }
}

TEST_CASE("an exit code is reported with the rank's last output, and the others are aborted", "[launch]") {
  LaunchJob job(3, {"code", "7", "1"});
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 1);
  CHECK(cause_of(result) == "[1] exited with code 7; its last line on standard error: the last words [code 7]");
  for (const std::size_t other : {0U, 2U}) {
    CHECK(result.ranks[other].exit_code == 1);
    CHECK(result.ranks[other].failure == FailureKind::consequence);
    CHECK(result.ranks[other].text.find("the job is aborted: rank 1 (pid ") != std::string::npos);
    CHECK_FALSE(result.ranks[other].killed);
  }
}

TEST_CASE("exit code 0 without a goodbye is a failure", "[launch]") {
  LaunchJob job(2, {"code", "0", "0"});
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 1);
  CHECK(cause_of(result).starts_with("[0] exited with code 0 and without a goodbye"));
}

TEST_CASE("a bad exit code after the goodbye is a failure, and never the launcher's own", "[launch]") {
  const std::string code = GENERATE("2", "3", "75", "130");
  LaunchJob job(1, {"goodbye", code});
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 1);
  CHECK(cause_of(result) == "[0] exited with code " + code + " after its goodbye [code " + code + "]");
}

TEST_CASE("a rank killed while all wait in get() is the root cause, with its signal", "[launch]") {
  for (int rank = 0; rank < 3; ++rank) {
    LaunchJob job(3, {"wait"});
    kill_when_all_wait(job, rank, SIGKILL);
    const LaunchResult result = job.run();
    CHECK(result.exit_code == 1);
    CHECK(cause_of(result) == "[" + std::to_string(rank) + "] " + killed + " [signal 9]");
    CHECK(result.cause->pid == pid_of(job, rank));
    CHECK_FALSE(result.cause->host.empty());
    CHECK(describe(*result.cause).starts_with("rank " + std::to_string(rank) + " (pid "));
  }
}

TEST_CASE("a rank that aborts itself is reported with the signal", "[launch]") {
  LaunchJob job(2, {"wait"});
  kill_when_all_wait(job, 1, SIGABRT);
  const LaunchResult result = job.run();
  CHECK(cause_of(result).starts_with("[1] was ended by signal 6 (SIGABRT)"));
}

TEST_CASE("a rank killed before it joins is the root cause", "[launch]") {
  LaunchJob job(3, {"silent"});
  job.then = [&job](const LaunchJob::Text& line) {
    if (line.rank == 1) {
      ::kill(pid_of(job, 1), SIGKILL);
    }
  };
  const LaunchResult result = job.run();
  CHECK(cause_of(result).starts_with("[1] was killed by signal 9 (SIGKILL) before it joined the job"));
  CHECK(result.ranks[0].killed);
  CHECK_FALSE(result.ranks[1].killed);
}

TEST_CASE("the root cause has the failed rank's own message", "[launch]") {
  LaunchJob job(3, {"fail", "2"});
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 1);
  CHECK(cause_of(result) == "[2] step 7: the loss is NaN [code 3]");
  CHECK(result.cause->is_permanent);
}

TEST_CASE("a death is the root cause even if its consequence was seen first", "[launch]") {
  LaunchJob job(2, {"lost_peer"});
  job.then = [&job](const LaunchJob::Text& line) {
    if (job.all_said("ready") && line.text == "ready") {
      // Rank 0 must not hear of the abort, as a dead one would not.
      shardrun::test::stop_process(pid_of(job, 0));
      ::kill(pid_of(job, 1), SIGUSR1);
    }
    if (line.text == "told") {
      ::kill(pid_of(job, 0), SIGKILL);
    }
  };
  const LaunchResult result = job.run();
  CHECK(cause_of(result) == "[0] " + killed + " [signal 9]");
  CHECK(result.ranks[1].text == "the connection to rank 0 is lost");
  CHECK(result.ranks[1].failure == FailureKind::consequence);
}

TEST_CASE("a consequence is the root cause if nothing else failed", "[launch]") {
  LaunchJob job(2, {"lost_peer"});
  kill_when_all_wait(job, 1, SIGUSR1);
  const LaunchResult result = job.run();
  CHECK(cause_of(result) == "[1] the connection to rank 0 is lost [code 1]");
}

TEST_CASE("a rank that others waited for is named before them", "[launch]") {
  LaunchJob job(3, {"awaiting", "1", "2", "2"});
  kill_when_all_wait(job, 0, SIGUSR1);
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 1);
  CHECK(cause_of(result) == "[2] does not answer other ranks, though it answers the launcher: rank 1 (pid " +
                                std::to_string(pid_of(job, 1)) + "): too late [code 1]");
}

TEST_CASE("a rank that is named late is the cause, rather than a rank that named nobody", "[launch]") {
  LaunchJob job(3, {"awaiting", "-1", "2", "2"});
  kill_when_all_wait(job, 0, SIGUSR1);
  const LaunchResult result = job.run();
  CHECK(cause_of(result).starts_with("[2] does not answer other ranks, though it answers the launcher: rank 1 (pid "));
}

TEST_CASE("a cause is final when all ranks that wait have reported, and the accused rank too") {
  FailureJudge judge(4);
  for (int rank = 0; rank < 4; ++rank) {
    judge.of(rank).joined = true;
  }
  judge.of(3).end.said_goodbye = true;
  judge.failed(0, FailureKind::consequence, 1, "late");
  CHECK_FALSE(judge.is_final());
  judge.failed(1, FailureKind::consequence, 2, "later");
  CHECK(judge.cause().value().rank == 2);
  CHECK_FALSE(judge.is_final());
  judge.failed(2, FailureKind::consequence, 1, "latest");
  CHECK(judge.is_final());
  CHECK(judge.result().cause.value().text ==
        "it and rank 1 wait for each other: rank 1 (pid -1): later; rank 2 itself: latest");
}

TEST_CASE("if two ranks lose each other, the messages of both are shown", "[launch]") {
  LaunchJob job(3, {"awaiting", "1", "0", "2"});
  kill_when_all_wait(job, 0, SIGUSR1);
  const LaunchResult result = job.run();
  CHECK(cause_of(result) == "[1] it and rank 0 wait for each other: rank 0 (pid " + std::to_string(pid_of(job, 0)) +
                                "): too late; rank 1 itself: too late [code 1]");
}

TEST_CASE("if three ranks wait in a ring, only the message about the cause is shown", "[launch]") {
  LaunchJob job(3, {"awaiting", "1", "2", "0"});
  kill_when_all_wait(job, 0, SIGUSR1);
  CHECK_THAT(cause_of(job.run()), Contains("does not answer other ranks") && !Contains("itself"));
}

TEST_CASE("a rank that repeats that others wait for it adds nothing to the message", "[launch]") {
  LaunchJob job(2, {"awaiting", "1", "echo"});
  kill_when_all_wait(job, 0, SIGUSR1);
  const LaunchResult result = job.run();
  CHECK(cause_of(result) == "[1] does not answer other ranks, though it answers the launcher: rank 0 (pid " +
                                std::to_string(pid_of(job, 0)) + "): too late [code 1]");
}

TEST_CASE("the death of a rank that others waited for is the root cause", "[launch]") {
  LaunchJob job(2, {"awaiting", "1", "1"});
  job.settings.grace = std::chrono::minutes(1);
  job.then = [&job](const LaunchJob::Text& line) {
    if (job.all_said("ready") && line.text == "ready") {
      // Rank 1 must not hear of the abort, as a dead one would not.
      shardrun::test::stop_process(pid_of(job, 1));
      ::kill(pid_of(job, 0), SIGUSR1);
    }
    if (line.text == "told") {
      ::kill(pid_of(job, 1), SIGKILL);
    }
  };
  const LaunchResult result = job.run();
  CHECK(cause_of(result) == "[1] " + killed + " [signal 9]");
}

TEST_CASE("a rank that does not wait hears of the abort by its callback", "[launch]") {
  LaunchJob job(2, {"callback"});
  kill_when_all_wait(job, 0, SIGKILL);
  const LaunchResult result = job.run();
  CHECK(cause_of(result) == "[0] " + killed + " [signal 9]");
  CHECK(result.ranks[1].exit_code == 9);
  CHECK(job.lines_of(1).back().starts_with("aborted: rank 0 (pid "));
}

TEST_CASE("a rank that does not end when told to is killed after the grace", "[launch]") {
  LaunchJob job(2, {"lost_peer"});  // rank 1 waits only for a signal
  job.settings.grace = std::chrono::milliseconds(100);
  kill_when_all_wait(job, 0, SIGKILL);
  const LaunchResult result = job.run();
  CHECK(cause_of(result) == "[0] " + killed + " [signal 9]");
  CHECK(result.ranks[1].killed);
  CHECK(result.ranks[1].signal == SIGKILL);
  CHECK(result.ending >= job.settings.grace);
}

TEST_CASE("a key that is set twice fails the job and is named", "[launch]") {
  LaunchJob job(2, {"set_twice"});
  const LaunchResult result = job.run();
  CHECK(cause_of(result) == "[1] set the key 'common' of the store, which is set already: each is set once [code 1]");
}
