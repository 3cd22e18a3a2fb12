#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "core/files/descriptor.h"
#include "core/launch/process.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/launch/job.h"

using namespace shardrun::launch;
using shardrun::files::FileDescriptor;
using shardrun::test::error_of;
using shardrun::test::LaunchJob;

TEST_CASE("a program that cannot be run is an error, and no process is left", "[launch]") {
  LaunchJob job(2, {"exchange"});
  job.settings.program = "/no/such/program";
  // Both ranks fail, and either failure may be seen first.
  CHECK_THAT(error_of([&] { (void)job.run(); }),
             Catch::Matchers::Matches("1: rank [01] of 2 could not be started: cannot run '/no/such/program': No such "
                                      "file or directory"));
  job.check_nothing_left();
}

TEST_CASE("if descriptors run out, the ranks already started are ended", "[launch]") {
  rlimit before = {};
  ::getrlimit(RLIMIT_NOFILE, &before);
  LaunchJob job(100, {"wait"});
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(shardrun::test::open_descriptors() + 40);
  ::setrlimit(RLIMIT_NOFILE, &low);
  const std::string error = error_of([&] { (void)job.run(); });
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(error.find("of 100 could not be started: cannot open a pipe to a rank: Too many open files; raise") !=
        std::string::npos);
  CHECK(error.find("rank 0 of") == std::string::npos);
  job.check_nothing_left();
  CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
}

TEST_CASE("if processes run out, the error says which limit to raise", "[launch]") {
  StartedProcess launcher = start_process(
      {.program = SHARDRUN_RANK_PROGRAM, .arguments = {"rank", "parent", "2", "wait", "alone"}, .environment = {}});
  std::string errors;
  std::array<char, 512> chunk = {};
  for (ssize_t got = 0; (got = ::read(launcher.errors.get(), chunk.data(), chunk.size())) > 0;) {
    errors.append(chunk.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  REQUIRE(::waitpid(launcher.pid, &status, 0) == launcher.pid);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 97);
  CHECK(errors.find("rank 0 of 2 could not be started: cannot start a process: Resource temporarily unavailable; raise "
                    "the limit of processes") != std::string::npos);
}

TEST_CASE("ranks of another job are refused", "[launch]") {
  LaunchJob job(1, {"other_job"});
  job.settings.job = "[train]\nsteps = 2\n";
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 1);
  CHECK(job.logged("came with another job: have the job file"));
  CHECK(result.cause->text.find("exited with code 4 before it joined the job; its last line on standard error: the "
                                "launcher refused this process: rank 0 (pid ") != std::string::npos);
}

TEST_CASE("ranks die with their launcher", "[launch]") {
  // Every rank has a copy of the pipe's write end, so the pipe ends once all of them are gone.
  std::array<int, 2> ends = {};
  REQUIRE(::pipe(ends.data()) == 0);
  const FileDescriptor all_gone(ends[0]);
  FileDescriptor held(ends[1]);
  ::fcntl(all_gone.get(), F_SETFD, FD_CLOEXEC);
  StartedProcess launcher = start_process(
      {.program = SHARDRUN_RANK_PROGRAM, .arguments = {"rank", "parent", "3", "wait"}, .environment = {}});
  held = {};
  std::string output;
  while (std::count(output.begin(), output.end(), '\n') < 3) {
    std::array<char, 64> chunk = {};
    const ssize_t got = ::read(launcher.output.get(), chunk.data(), chunk.size());
    REQUIRE(got > 0);
    output.append(chunk.data(), static_cast<std::size_t>(got));
  }
  CHECK(output == "ready\nready\nready\n");
  pollfd hung_up = {.fd = all_gone.get(), .events = POLLIN, .revents = 0};
  CHECK(::poll(&hung_up, 1, 0) == 0);

  ::kill(launcher.pid, SIGKILL);
  REQUIRE(::waitpid(launcher.pid, nullptr, 0) == launcher.pid);
  CHECK(::poll(&hung_up, 1, 60000) == 1);
  CHECK((hung_up.revents & POLLHUP) != 0);
}
