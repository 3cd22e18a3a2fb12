#include <sys/wait.h>

#include "core/launch/process.h"
#include "tests/support/catch.h"
#include "tests/unit/launch/job.h"

using namespace shardrun::launch;
using shardrun::test::LaunchJob;

TEST_CASE("strangers are dropped and counted, and the job goes on", "[launch]") {
  LaunchJob job(2, {"attacked"});
  job.settings.stranger_timeout = std::chrono::milliseconds(200);
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 0);
  std::vector<std::string> outcomes;
  std::string strangers;
  for (const LaunchJob::Text& message : job.messages) {
    if (message.text.starts_with("attack: ")) {
      outcomes.push_back(message.text.substr(8));
    }
    if (message.text.starts_with("strangers: ")) {
      strangers = message.text.substr(11);
    }
  }
  const std::vector<std::string> expected = {"HTTP: dropped",
                                             "zeros: dropped",
                                             "ones: dropped",
                                             "long: dropped",
                                             "much: dropped",
                                             "hello in the clear: dropped",
                                             "TLS without a key: dropped",
                                             "TLS 1.2: dropped",
                                             "silence: dropped",
                                             "drop by drop: dropped",
                                             "replay: answered, dropped",
                                             "two replays: answered, dropped",
                                             "token: dropped",
                                             "taken rank: refused, rank 0 is taken",
                                             "no such rank: refused, there is no rank 1000 among 2",
                                             "other size: refused, it is one of 3 ranks, and this job has 2",
                                             "other job: refused, rank 0 (pid 1) came with another job: have the job "
                                             "file or a plugin changed while the job was "
                                             "starting?",
                                             "version: dropped",
                                             "no hello: dropped",
                                             "long frame: dropped"};
  CHECK(outcomes == expected);
  CHECK(std::to_string(result.strangers) == strangers);
  CHECK(job.notices == std::vector<std::string>{strangers + " connections came from strangers, and were dropped"});
  CHECK(job.logged("it has not proved that it knows this job's token: TLS failed: binder does not verify"));
  CHECK(job.logged("TLS failed: excessive message size"));
  CHECK(job.logged("it sent more than 4096 bytes without a proof"));
  CHECK(job.logged("it said no hello within 200 ms"));
  CHECK(job.logged("it speaks version 9 of the protocol, not 4"));
  CHECK(job.logged("it announced a frame of 2097152 bytes, of 2 to 1048576"));
  CHECK(job.logged("the rest is not logged"));
  CHECK(job.logs.size() <= 22);
}

// UndefinedBehaviorSanitizer needs a free descriptor to look at an object. Without one it takes the object for broken.
#if !defined(SHARDRUN_ASAN)
TEST_CASE("strangers that hold all descriptors of a launcher keep no rank out", "[launch]") {
  const StartedProcess launcher = start_process(
      {.program = SHARDRUN_RANK_PROGRAM, .arguments = {"rank", "parent", "2", "crowd", "few"}, .environment = {}});
  int status = 0;
  REQUIRE(::waitpid(launcher.pid, &status, 0) == launcher.pid);
  CHECK(status == 0);
}
#endif
