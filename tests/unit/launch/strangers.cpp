#include "tests/support/catch.h"
#include "tests/unit/launch/job.h"

using namespace shardrun::launch;
using shardrun::test::LaunchJob;

TEST_CASE("strangers are dropped and the job goes on", "[launch]") {
  LaunchJob job(2, {"attacked"});
  job.settings.stranger_timeout = std::chrono::milliseconds(200);
  const LaunchResult result = job.run();
  CHECK(result.exit_code == 0);
  std::vector<std::string> outcomes;
  for (const LaunchJob::Text& message : job.messages) {
    if (message.text.starts_with("attack: ")) {
      outcomes.push_back(message.text.substr(8));
    }
  }
  const std::vector<std::string> expected = {"HTTP: dropped",
                                             "zeros: dropped",
                                             "ones: dropped",
                                             "long: dropped",
                                             "no hello: dropped",
                                             "short hello: dropped",
                                             "long hello: dropped",
                                             "version: dropped",
                                             "token: dropped",
                                             "silence: dropped",
                                             "drop by drop: dropped",
                                             "taken rank: refused, rank 0 is taken",
                                             "no such rank: refused, there is no rank 1000 among 2",
                                             "other job: refused, rank 0 (pid 1) came with another job: have the job "
                                             "file or a plugin changed while the job was starting?"};
  CHECK(outcomes == expected);
  CHECK(job.logged("its token is not this job's"));
  CHECK(job.logged("it announced a frame of 542393671 bytes, of 2 to 256"));
  CHECK(job.logged("it said no hello within 200 ms"));
  CHECK(job.logged("it speaks version 9 of the protocol, not 2"));
  CHECK(job.logged("the rest is not logged"));
  CHECK(job.logs.size() <= 21);
}
