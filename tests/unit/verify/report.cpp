#include <chrono>
#include <limits>

#include "core/verify/meter.h"
#include "core/verify/report.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace std::chrono_literals;
using verify::Difference;
using verify::Report;
using verify::What;

namespace {

/// A screen, and a clock that goes when it is told to.
struct Screen {
  std::string text;
  screen::SteadyTime now;

  [[nodiscard]] screen::ProgressSink sink(bool is_terminal) {
    return {.write = [this](std::string_view written) { text += written; },
            .is_terminal = is_terminal,
            .width = [] { return std::size_t{40}; },
            .now = [this] { return now; }};
  }
};

}  // namespace

TEST_CASE("off a terminal a meter shows whole lines: at once, at each tenth and every 10 s", "[verify]") {
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

TEST_CASE("on a terminal a meter rewrites one line that fits, and erases it at the end", "[verify]") {
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

namespace {

Report three() {
  Report report;
  report.count_step();
  report.add({.tensor = "a", .what = What::update, .relative = 5e-7, .tolerance = 1e-6, .step = 1});
  report.add({.tensor = "a", .what = What::gradient, .relative = 1e-6, .tolerance = 1e-5, .step = 1});
  report.add({.tensor = "b", .what = What::gradient, .relative = 2e-6, .tolerance = 1e-5, .step = 1});
  return report;
}

}  // namespace

TEST_CASE("a report is sorted by the share of its tolerance that each difference took", "[verify]") {
  const std::vector<Difference> worst = three().worst();
  REQUIRE(worst.size() == 3);
  CHECK((worst[0].tensor == "a" && worst[0].what == What::update));
  CHECK(worst[1].tensor == "b");
  CHECK((worst[2].tensor == "a" && worst[2].what == What::gradient));
}

TEST_CASE("a report keeps the worst step of each difference", "[verify]") {
  Report report = three();
  report.add({.tensor = "b", .what = What::gradient, .relative = 1e-6, .tolerance = 1e-5, .step = 2});
  CHECK(report.worst()[1].step == 1);
  report.add({.tensor = "b", .what = What::gradient, .relative = 3e-6, .tolerance = 1e-5, .step = 3});
  CHECK(report.worst()[1].step == 3);
  CHECK(report.compared() == 3);
}

TEST_CASE("a report fails if one comparison failed or is NaN, or if there is none", "[verify]") {
  CHECK_FALSE(Report().passed());
  CHECK(three().passed());
  for (const double relative : {1.1e-6, std::numeric_limits<double>::quiet_NaN()}) {
    Report report = three();
    report.add({.tensor = "c", .what = What::update, .relative = relative, .tolerance = 1e-6, .step = 1});
    report.add({.tensor = "c", .what = What::update, .relative = 1e-7, .tolerance = 1e-6, .step = 2});
    CHECK_FALSE(report.passed());
    CHECK(report.worst().front().tensor == "c");
  }
  Report report = three();
  report.add({.tensor = "c", .what = What::replica});
  CHECK(report.passed());
  report.add({.tensor = "c", .what = What::replica, .relative = 1e-300});
  CHECK_FALSE(report.passed());
}

TEST_CASE("a report as text and as JSON", "[verify]") {
  Report report = three();
  report.add({.tensor = "layer \"0\"",
              .what = What::update,
              .relative = std::numeric_limits<double>::quiet_NaN(),
              .tolerance = 1e-6,
              .unfloored = 0.25,
              .step = 2,
              .ranks = {0, 3},
              .note = "element [1] is nan, should be 2"});
  // A gradient goes by its parameter's name, and is a tensor of its own. First values are of no step.
  report.add({.tensor = "c", .state = "gradients/c", .what = What::gradient, .step = 1, .values = 100});
  report.add({.tensor = "c", .what = What::update, .step = 1, .values = 11});
  report.add({.tensor = "c", .what = What::initial, .step = 1, .values = 11});
  CHECK(verify::to_text(report, 2) ==
        "tensor     what            relative  tolerance  unfloored   step\n"
        "layer \"0\"  update               nan      1e-06   2.50e-01      2  FAILED: element [1] is nan, should be 2\n"
        "a          update          5.00e-07      1e-06   0.00e+00      1\n"
        "compared with the float64 reference: 5 tensors, 111 values a step, over 1 step\n"
        "failed: 1 of 7 comparisons (each is a tensor and what of it, at its worst step), in 1 of the tensors\n");
  CHECK(verify::to_json(report, 0) ==
        R"({"passed": false, "steps": 1, "compared": 7, "failed": 1, "tensors": 5, "failed_tensors": 1, )"
        R"("values_per_step": 111, "worst": [{"tensor": "layer \"0\"", "what": "update", )"
        R"("relative": null, "tolerance": 1e-06, "unfloored": 0.25, "step": 2, "ranks": [0, 3], )"
        R"("note": "element [1] is nan, should be 2"}]})"
        "\n");
}
