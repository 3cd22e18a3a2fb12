#include "core/metrics/log.h"

#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::metrics;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

/// The time 2024-02-29 23:59:59.042 UTC.
WallTime leap_day() { return WallTime(std::chrono::milliseconds(1709251199042)); }

}  // namespace

TEST_CASE("every line of a log begins with the time and is passed on", "[metrics]") {
  const TemporaryFolder folder;
  std::vector<std::string> passed;
  Log log(
      folder / "run/log/rank-0.log", [&](std::string_view line) { passed.emplace_back(line); }, leap_day);

  log.write("first\n\nthird");
  log.write("");

  CHECK(read_file(folder / "run/log/rank-0.log") ==
        "2024-02-29T23:59:59.042Z first\n2024-02-29T23:59:59.042Z \n2024-02-29T23:59:59.042Z third\n");
  CHECK(passed == std::vector<std::string>{"first", "", "third"});
}

TEST_CASE("a log that cannot be written says so once and does not stop the run", "[metrics]") {
  std::vector<std::string> passed;
  Log log(
      "/dev/full", [&](std::string_view line) { passed.emplace_back(line); }, leap_day);

  log.write("one\ntwo");

  REQUIRE(passed.size() == 3);
  CHECK(passed[0] == "one");
  CHECK_THAT(passed[1], Contains("the log ends here: cannot write '/dev/full': No space left on device"));
  CHECK(passed[2] == "two");
  CHECK(log.take_failure() == passed[1]);
  CHECK(log.take_failure().empty());
}

TEST_CASE("a log that cannot be opened is an error", "[metrics]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "");

  CHECK_THAT(error_of([&] { Log(folder / "file/rank-0.log"); }), Contains("1: cannot"));
  CHECK_THAT(error_of([&] { Log{folder.path()}; }), Contains("cannot open the log") && Contains("Is a directory"));
}

TEST_CASE("lines of several threads stay whole", "[metrics]") {
  const TemporaryFolder folder;
  constexpr int lines = 200;
  {
    Log log(folder / "log", {}, leap_day);
    std::vector<std::thread> threads;
    for (const char c : {'a', 'b', 'c'}) {
      threads.emplace_back([&log, c] {
        for (int i = 0; i < lines; ++i) {
          log.write(std::string(50, c));
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  const std::string text = read_file(folder / "log");
  for (const char c : {'a', 'b', 'c'}) {
    const std::string line = " " + std::string(50, c) + "\n";
    int found = 0;
    for (std::size_t at = text.find(line); at != std::string::npos; at = text.find(line, at + 1)) {
      ++found;
    }
    CHECK(found == lines);
  }
}
