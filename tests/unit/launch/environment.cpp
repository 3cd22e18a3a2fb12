#include "core/launch/environment.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/launch/job.h"

using namespace shardrun::launch;
using shardrun::test::error_of;
using shardrun::test::LaunchJob;

namespace {

/// The descriptors that this process got for its children, too.
std::string inheritable_descriptors() {
  std::string found;
  for (int descriptor = handed_over_descriptor + 1; descriptor < 256; ++descriptor) {
    const int flags = ::fcntl(descriptor, F_GETFD);
    found += flags >= 0 && (flags & FD_CLOEXEC) == 0 ? " " + std::to_string(descriptor) : "";
  }
  return found;
}

}  // namespace

TEST_CASE("a rank's environment replaces the variables of another launcher", "[launch]") {
  const std::vector<std::string> inherited = {"HOME=/root", "RANK=9", "OMP_NUM_THREADS=64", "RANKS=7"};
  const RankContext context{
      .rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2, .address = "127.0.0.1", .port = 80};
  const std::vector<std::string> expected = {"HOME=/root",
                                             "RANKS=7",
                                             "RANK=1",
                                             "WORLD_SIZE=2",
                                             "LOCAL_RANK=1",
                                             "LOCAL_WORLD_SIZE=2",
                                             "MASTER_ADDR=127.0.0.1",
                                             "MASTER_PORT=80",
                                             "OMP_NUM_THREADS=3",
                                             "OMP_WAIT_POLICY=passive",
                                             "SHARDRUN_LAUNCH_FD=3"};
  CHECK(rank_environment(inherited, context, 3) == expected);
}

TEST_CASE("a rank sees its place, no token, no standard input and no descriptor of the launcher's own", "[launch]") {
  LaunchJob job(2, {"show"});
  job.settings.threads_per_rank = 5;
  CHECK(job.run().exit_code == 0);
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<std::string> expected = {"RANK=" + std::to_string(rank),
                                               "WORLD_SIZE=2",
                                               "LOCAL_RANK=" + std::to_string(rank),
                                               "LOCAL_WORLD_SIZE=2",
                                               "MASTER_ADDR=127.0.0.1",
                                               "OMP_NUM_THREADS=5",
                                               "OMP_WAIT_POLICY=passive",
                                               "SHARDRUN_LAUNCH_FD=(unset)",
                                               "port agrees",
                                               "stdin 0",
                                               "SIGPIPE ignored",
                                               "group its own",
                                               "descriptors" + inheritable_descriptors()};
    CHECK(job.lines_of(rank) == expected);
  }
}

TEST_CASE("a process that launch() did not start is not a rank, whatever RANK says", "[launch]") {
  ::setenv("RANK", "1", 1);
  ::setenv("WORLD_SIZE", "2", 1);
  CHECK_FALSE(take_rank_context());
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
}

TEST_CASE("an invalid SHARDRUN_LAUNCH_FD is refused", "[launch]") {
  ::setenv("SHARDRUN_LAUNCH_FD", "three", 1);
  CHECK(error_of([] { (void)take_rank_context(); }).find("SHARDRUN_LAUNCH_FD is 'three'") != std::string::npos);
  ::unsetenv("SHARDRUN_LAUNCH_FD");

  std::array<int, 2> ends = {};
  REQUIRE(::pipe(ends.data()) == 0);
  ::close(ends[1]);
  ::setenv("SHARDRUN_LAUNCH_FD", std::to_string(ends[0]).c_str(), 1);
  CHECK(error_of([] { (void)take_rank_context(); }).find("its launcher handed nothing over") != std::string::npos);
  CHECK(::getenv("SHARDRUN_LAUNCH_FD") == nullptr);
  CHECK(::close(ends[0]) != 0);
}
