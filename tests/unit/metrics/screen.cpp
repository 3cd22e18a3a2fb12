#include <algorithm>
#include <filesystem>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/metrics/human.h"
#include "core/metrics/log.h"
#include "core/metrics/progress.h"
#include "core/metrics/screen.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::metrics;
using namespace shardrun::test;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

TEST_CASE("counts read as people write them", "[metrics]") {
  CHECK(human_count(0) == "0");
  CHECK(human_count(7) == "7");
  CHECK(human_count(0.5) == "0.5");
  CHECK(human_count(999) == "999");
  CHECK(human_count(999.6) == "1.00k");
  CHECK(human_count(1000) == "1.00k");
  CHECK(human_count(12345) == "12.3k");
  CHECK(human_count(804096) == "804k");
  CHECK(human_count(124439808) == "124M");
  CHECK(human_count(7e9) == "7.00G");
  CHECK(human_count(-1) == "-");
  CHECK(human_count(std::numeric_limits<double>::quiet_NaN()) == "-");
  CHECK(human_count(std::numeric_limits<double>::infinity()) == "-");
}

TEST_CASE("bytes come in powers of 1024", "[metrics]") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1024) == "1.00 KiB");
  CHECK(human_bytes(1536) == "1.50 KiB");
  CHECK(human_bytes(12'900'000) == "12.3 MiB");
  CHECK(human_bytes(std::uint64_t{5} << 30U) == "5.00 GiB");
}

TEST_CASE("durations show their two largest units", "[metrics]") {
  CHECK(human_duration(0.42) == "0.42s");
  CHECK(human_duration(3.21) == "3.2s");
  CHECK(human_duration(9.96) == "10s");
  CHECK(human_duration(59.4) == "59s");
  CHECK(human_duration(59.6) == "1m00s");
  CHECK(human_duration(65) == "1m05s");
  CHECK(human_duration(3599.6) == "1h00m");
  CHECK(human_duration(2 * 3600 + 3 * 60 + 59) == "2h03m");
  CHECK(human_duration(4 * 86400 + 5 * 3600) == "4d05h");
  CHECK(human_duration(-1) == "-");
  CHECK(human_duration(std::numeric_limits<double>::infinity()) == "-");
}

TEST_CASE("quantities have a prefix, a unit and a space before it", "[metrics]") {
  CHECK(human_quantity(0, "FLOP") == "0 FLOP");
  CHECK(human_quantity(0.5, "FLOP") == "0.5 FLOP");
  CHECK(human_quantity(180, "FLOP") == "180 FLOP");
  CHECK(human_quantity(57'344, "FLOP") == "57.3 kFLOP");
  CHECK(human_quantity(12.34e9, "FLOP/s") == "12.3 GFLOP/s");
  CHECK(human_quantity(3.349e18, "FLOP") == "3.35 EFLOP");
  CHECK(human_quantity(-1, "FLOP") == "-");
}

TEST_CASE("times that were measured keep three digits", "[metrics]") {
  CHECK(human_time(0) == "0.00 us");
  CHECK(human_time(45.62e-6) == "45.6 us");
  CHECK(human_time(999.6e-6) == "1.00 ms");
  CHECK(human_time(0.001234) == "1.23 ms");
  CHECK(human_time(0.3567) == "357 ms");
  CHECK(human_time(0.9999) == "1.00 s");
  CHECK(human_time(12.148075) == "12.1 s");
  CHECK(human_time(59.96) == "1m00s");
  CHECK(human_time(65) == "1m05s");
  CHECK(human_time(-1) == "-");
  CHECK(human_time(std::numeric_limits<double>::quiet_NaN()) == "-");
}

TEST_CASE("a path is shown without detours, from the working folder where that is shorter", "[metrics]") {
  const std::filesystem::path here = std::filesystem::current_path();
  CHECK(human_path(here / "a/../runs/job") == "runs/job");
  CHECK(human_path("./runs/../runs/job") == "runs/job");
  CHECK(human_path("/x/../y/z") == "/y/z");
  CHECK(human_path(here) == ".");
}

TEST_CASE("a count and its noun agree", "[metrics]") {
  CHECK(counted(1, "thread") == "1 thread");
  CHECK(counted(0, "thread") == "0 threads");
  CHECK(counted(4, "thread") == "4 threads");
  CHECK(counted(1, "process", "processes") == "1 process");
  CHECK(counted(2, "process", "processes") == "2 processes");
}

namespace {

/// 2024-02-29 23:59:59.042 UTC
WallTime leap_day() { return WallTime(std::chrono::milliseconds(1709251199042)); }

}  // namespace

TEST_CASE("every line has the time before it and is passed on", "[metrics]") {
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

namespace {

/// A screen that takes nothing before `release`, as a terminal after Ctrl-S.
struct StoppedWriter {
  std::promise<void> release;
  std::shared_ptr<std::promise<std::string>> all = std::make_shared<std::promise<std::string>>();

  std::function<void(std::string_view)> writer() {
    return [released = release.get_future().share(), text = std::make_shared<std::string>(),
            all = all](std::string_view piece) {
      released.wait();
      *text += piece;
      if (text->ends_with("the end")) {
        all->set_value(*text);
      }
    };
  }
};

}  // namespace

TEST_CASE("a screen that takes nothing holds up nobody, and shows all once it does", "[metrics]") {
  StoppedWriter stopped;
  Screen screen(stopped.writer());
  std::string expected;
  for (int line = 0; line < 1000; ++line) {
    const std::string text = "line " + std::to_string(line) + "\n";
    screen.write(text);
    expected += text;
  }
  screen.write("the end");
  CHECK(screen.waiting_bytes() == expected.size() + 7);

  stopped.release.set_value();
  CHECK(screen.finish({}, 60s));

  CHECK(stopped.all->get_future().get() == expected + "the end");
  CHECK(screen.waiting_bytes() == 0);
}

TEST_CASE("a screen that takes nothing is given up, one that takes something is waited for", "[metrics]") {
  StoppedWriter stopped;
  Screen given_up(stopped.writer());
  given_up.write("the end");
  int asked = 0;
  CHECK_FALSE(given_up.finish([&] { return ++asked < 3; }, 1ms));
  CHECK(asked == 3);
  stopped.release.set_value();
  CHECK(stopped.all->get_future().get() == "the end");

  std::string taken;
  Screen slow([&](std::string_view piece) { taken += piece; });
  slow.write(std::string(1'000'000, 'x'));
  CHECK(slow.finish({}, 60s));
  CHECK(taken.size() == 1'000'000);
}

TEST_CASE("the thread of a screen that was given up needs nothing of it", "[metrics]") {
  StoppedWriter stopped;
  std::promise<void> ended;
  {
    std::shared_ptr<void> last(nullptr, [&](void*) { ended.set_value(); });
    Screen screen([writer = stopped.writer(), last = std::move(last)](std::string_view piece) { writer(piece); });
    screen.write("the end");
    CHECK_FALSE(screen.finish({}, 1ms));
  }
  stopped.release.set_value();
  CHECK(stopped.all->get_future().get() == "the end");
  CHECK(ended.get_future().wait_for(60s) == std::future_status::ready);
}

TEST_CASE("updates are left out where the screen is behind, lines and the end are not", "[metrics]") {
  std::string shown;
  bool is_behind = false;
  Progress progress({.write = [&](std::string_view text) { shown += text; },
                     .width = [] { return std::size_t{80}; },
                     .now = [] { return SteadyTime(); },
                     .is_behind = [&] { return is_behind; }},
                    3, 1);
  progress.update({.step = 1});
  is_behind = true;
  progress.update({.step = 2});
  progress.print("a line");
  progress.update({.step = 3});
  progress.finish();

  CHECK(shown.find("step 1/3") != std::string::npos);
  CHECK(shown.find("step 2/3") == std::string::npos);
  CHECK(shown.find("a line\n") != std::string::npos);
  CHECK(shown.find("step 3/3") != std::string::npos);
}
