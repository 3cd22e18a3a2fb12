// What a person sees on a terminal.

#include <csignal>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace

TEST_CASE("an error is said once, on a line of its own, whatever stood on the screen", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  const Ended ended = run_on_terminal(
      job.path(),
      with_settings({"job.ini"}, {"job.ranks=" + ranks, ranks == "1" ? "job.strategy=single" : "job.strategy=dp",
                                  "train.learning_rate=1e20", "train.clip=1e30", "train.warmup=0"}));
  INFO(ended.out);
  CHECK(ended.code == 1);
  CHECK(count(ended.out, "not finite") == 1);
  CHECK_THAT(ended.out, Contains("\nshardrun: "));
  CHECK_THAT(ended.out, Contains("step 1/30"));
  CHECK_THAT(read_file(job.path() / "run/log/rank-0.log"), Contains("not finite"));
}

TEST_CASE("Ctrl-C is answered at once, by one rank and by several", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  bool was_sent = false;
  const Ended ended = run_on_terminal(
      job.path(),
      with_settings({"job.ini"}, {"job.ranks=" + ranks, ranks == "1" ? "job.strategy=single" : "job.strategy=dp",
                                  "train.steps=1000000", "train.eval_every=0"}),
      [&](pid_t process, std::string_view out) {
        if (!was_sent && out.find("step 1/1000000") != std::string_view::npos) {
          was_sent = true;
          ::kill(process, SIGINT);
        }
      });
  INFO(ended.out);
  CHECK(ended.code == 128 + SIGINT);
  CHECK(count(ended.out, "stopping after this step (Ctrl-C again ends it now)\r\n") == 1);
  CHECK_THAT(ended.out, Contains("stopped after "));
}

TEST_CASE("before the first step the screen says what goes on", "[program]") {
  const JobFolder job;
  const std::string ranks = GENERATE("1", "2");
  const Ended ended = run_on_terminal(
      job.path(),
      with_settings({"job.ini"}, {"job.ranks=" + ranks, ranks == "1" ? "job.strategy=single" : "job.strategy=dp"}));
  INFO(ended.out);
  CHECK(ended.code == 0);
  for (const char* activity : {"\rreading data", "\rcompiling", "\rfirst step"}) {
    CHECK_THAT(ended.out, Contains(activity));
  }
  CHECK((ended.out.find("waiting for 2 ranks to join") != std::string::npos) == (ranks == "2"));
}
