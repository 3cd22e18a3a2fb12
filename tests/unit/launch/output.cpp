#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "tests/support/catch.h"
#include "tests/unit/launch/job.h"

using namespace shardrun::launch;
using shardrun::test::LaunchJob;

TEST_CASE("ranks' lines arrive whole, in order and by rank, however they were written", "[launch]") {
  LaunchJob job(3, {"print"});
  CHECK(job.run().exit_code == 0);
  REQUIRE(job.errors.size() == 3 * 500);
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<std::string> lines = job.lines_of(rank);
    REQUIRE(lines.size() == 502);
    for (std::size_t line = 0; line < 500; ++line) {
      const std::string expected = fmt::format("rank {} line {} {}", rank, line, std::string(300, 'x'));
      REQUIRE(lines[line] == expected);
      REQUIRE(std::count(job.errors.begin(), job.errors.end(), LaunchJob::Text{rank, expected}) == 1);
    }
    CHECK(lines[500].empty());
    CHECK(lines[501] == "the end");
  }
}

TEST_CASE("what a callback throws ends the ranks and comes out of launch()", "[launch]") {
  LaunchJob job(2, {"wait"});
  job.then = [](const LaunchJob::Text&) { throw std::runtime_error("the screen is full"); };
  CHECK_THROWS_WITH(job.run(), "the screen is full");
  job.check_nothing_left();
}
