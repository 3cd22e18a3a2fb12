#include <boost/asio/io_context.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/launch/supervisor.h"
#include "tests/support/catch.h"
#include "tests/unit/launch/job.h"

using namespace shardrun::launch;
using shardrun::files::FileDescriptor;
using shardrun::launch::LineSplitter;
using shardrun::test::LaunchJob;

namespace {

std::vector<std::string> split(const std::vector<std::string>& chunks) {
  std::vector<std::string> lines;
  LineSplitter splitter([&](std::string_view line) { lines.emplace_back(line); });
  for (const std::string& chunk : chunks) {
    splitter.add(chunk);
  }
  splitter.end();
  return lines;
}

}  // namespace

TEST_CASE("lines come whole however their bytes arrive", "[launch]") {
  const std::vector<std::string> lines = {"one", "", "three"};
  CHECK(split({"one\n\nthree\n"}) == lines);
  CHECK(split({"o", "ne", "\n", "\n", "thr", "ee"}) == lines);
  CHECK(split({"one\n", "", "\nthree"}) == lines);
  CHECK(split({}).empty());
}

TEST_CASE("an endless line comes in pieces of 64 KiB", "[launch]") {
  const std::string full(LineSplitter::max_line_bytes, 'x');
  CHECK(split({full + full + "yz"}) == std::vector<std::string>{full, full, "yz"});
  CHECK(split({full, "\n", "next\n"}) == std::vector<std::string>{full, "next"});
}

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

TEST_CASE("output written before a rank's end is read in order, even if reading had begun", "[launch]") {
  std::array<int, 2> ends = {};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  const FileDescriptor write_end(ends[1]);
  std::vector<std::string> lines;
  boost::asio::io_context io;
  OutputReader reader(io, FileDescriptor(ends[0]), [&](std::string_view line) { lines.emplace_back(line); });
  REQUIRE(::write(write_end.get(), "one\n", 4) == 4);
  reader.start();
  REQUIRE(::write(write_end.get(), "two\n", 4) == 4);
  reader.drain();
  io.run();
  CHECK(lines == std::vector<std::string>{"one", "two"});
}

TEST_CASE("an exception of a callback ends the ranks and leaves launch()", "[launch]") {
  LaunchJob job(2, {"wait"});
  job.then = [](const LaunchJob::Text&) { throw std::runtime_error("the screen is full"); };
  CHECK_THROWS_WITH(job.run(), "the screen is full");
  job.check_nothing_left();
}

TEST_CASE("an exception of a callback is not reported as a rank's failure", "[launch]") {
  LaunchJob job(2, {"exchange"});
  job.settings.on_message = [](const RankMessage&) {
    throw shardrun::Error(shardrun::ErrorCode::io, "the disk is full");
  };
  CHECK_THROWS_WITH(job.run(), Catch::Matchers::Contains("the disk is full"));
  job.check_nothing_left();
}
