#include "core/verify/meter.h"

#include <chrono>

#include "tests/support/catch.h"

using namespace shardrun;
using namespace std::chrono_literals;

namespace {

/// A screen, and a clock that goes when it is told to.
struct Screen {
  std::string text;
  metrics::SteadyTime now;

  [[nodiscard]] metrics::ProgressSink sink(bool is_terminal) {
    return {.write = [this](std::string_view written) { text += written; },
            .is_terminal = is_terminal,
            .width = [] { return std::size_t{40}; },
            .now = [this] { return now; }};
  }
};

}  // namespace

TEST_CASE("a meter shows whole lines off a terminal: at once, then each tenth and each 10 s", "[verify]") {
  Screen screen;
  verify::Meter meter(screen.sink(false), "comparing");
  meter.expect(1000);
  meter.at("step 1/2");
  CHECK(screen.text == "comparing: step 1/2  0%\n");
  screen.text.clear();

  screen.now += 1s;
  meter.add(150);  // a tenth, but 2 s have not passed
  CHECK(screen.text.empty());
  screen.now += 1s;
  meter.add(50);
  CHECK(screen.text == "comparing: step 1/2  20%  ETA 8.0s\n");
  screen.text.clear();

  screen.now += 9s;
  meter.add(1);
  CHECK(screen.text.empty());
  screen.now += 1s;
  meter.add(1);
  CHECK(screen.text == "comparing: step 1/2  20%  ETA 47s\n");
  screen.text.clear();

  meter.at("step 2/2");
  meter.print("step 1/2  loss 4.2");
  CHECK(screen.text == "comparing: step 2/2  20%  ETA 47s\nstep 1/2  loss 4.2\n");
}

TEST_CASE("a meter rewrites one line on a terminal, no wider than that, and leaves nothing of it", "[verify]") {
  Screen screen;
  {
    verify::Meter meter(screen.sink(true), "comparing");
    meter.expect(1000);
    meter.at("step 1/2");
    screen.now += 2s;
    meter.add(500);
    CHECK(screen.text == "\rcomparing: step 1/2  0%\rcomparing: step 1/2  50%  ETA 2.0s");
    meter.add(1);  // at most ten times a second
    screen.text.clear();
    meter.print("of its own");
    CHECK(screen.text == "\r" + std::string(34, ' ') + "\rof its own\n");
    screen.text.clear();
    meter.at("the very last step of a very long name");
    CHECK(screen.text == "\rcomparing: the very last step of a very");
    screen.text.clear();
  }
  CHECK(screen.text == "\r" + std::string(39, ' ') + "\r");
}
