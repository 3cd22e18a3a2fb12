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

/// A screen and a clock that the test controls.
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

TEST_CASE("a meter tells the remaining time once a twentieth of the work is done", "[verify]") {
  Screen screen;
  verify::Meter meter(screen.sink(false), "comparing");
  meter.expect(1000);
  screen.now += 10s;  // the first instructions move data
  meter.add(49);
  CHECK(screen.text == "comparing:   4%\n");
  screen.text.clear();
  screen.now += 10s;
  meter.add(1);
  CHECK(screen.text == "comparing:   5%  ETA 6m20s\n");
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
    meter.add(1);  // not shown: at most ten times a second
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

constexpr double half = 0.5 * verify::limit;

/// A difference of `multiple` times the rounding, both in mean and at its largest.
Difference times(double multiple, std::string tensor, What what, std::int64_t step = 1) {
  return {.tensor = std::move(tensor),
          .what = what,
          .error = {multiple * 0x1p-24, multiple * 0x1p-22},
          .rounding = {0x1p-24, 0x1p-22},
          .expected = 2,
          .step = step};
}

Report three() {
  Report report;
  report.count_step();
  report.add(times(half, "a", What::update));
  report.add(times(0.1, "a", What::gradient));
  report.add(times(0.2, "b", What::gradient));
  return report;
}

}  // namespace

TEST_CASE("a report is sorted by how many times what rounding makes each difference is", "[verify]") {
  const std::vector<Difference> worst = three().worst();
  REQUIRE(worst.size() == 3);
  CHECK((worst[0].tensor == "a" && worst[0].what == What::update));
  CHECK(worst[1].tensor == "b");
  CHECK((worst[2].tensor == "a" && worst[2].what == What::gradient));
  CHECK(worst[1].multiple() == 0.2);
  CHECK(worst[1].relative() == 0.1 * 0x1p-24);
}

TEST_CASE("a difference is as bad as its mean or its largest element, whichever is worse", "[verify]") {
  CHECK(Difference{.error = {4, 2}, .rounding = {2, 4}}.multiple() == 2);
  CHECK(Difference{.error = {1, 8}, .rounding = {2, 1}}.multiple() == 8);
}

TEST_CASE("a report keeps the largest error of each difference, and the largest rounding", "[verify]") {
  Report report = three();
  const auto of_b = [&] { return report.worst()[1]; };
  report.add(times(0.1, "b", What::gradient, 2));
  CHECK(of_b().step == 1);
  CHECK(of_b().multiple() == 0.2);
  report.add(times(0.3, "b", What::gradient, 3));
  CHECK(of_b().step == 3);
  CHECK(of_b().multiple() == Approx(0.3));
  Difference coarse = times(0.1, "b", What::gradient, 4);
  coarse.rounding = {0x1p-23, 0x1p-21};
  report.add(coarse);
  CHECK(of_b().step == 3);
  CHECK(of_b().multiple() == Approx(0.15));
  CHECK(report.compared() == 3);
}

TEST_CASE("a report fails if one comparison failed or is NaN, or if there is none", "[verify]") {
  CHECK_FALSE(Report().passed());
  CHECK(three().passed());
  for (const double multiple : {1.01 * verify::limit, std::numeric_limits<double>::quiet_NaN()}) {
    Report report = three();
    report.add(times(multiple, "c", What::update));
    report.add(times(0.1, "c", What::update, 2));
    CHECK_FALSE(report.passed());
    CHECK(report.worst().front().tensor == "c");
  }
  for (const bool is_first : {true, false}) {
    // The rounding is 0 where no error is allowed.
    Report report = three();
    const Difference wrong{.tensor = "c", .what = What::update, .error = {1e-300, 1e-300}};
    if (is_first) {
      report.add(wrong);
    }
    report.add(times(0, "c", What::update));
    report.add({.tensor = "c", .what = What::update});
    CHECK(report.passed() == !is_first);
    report.add(wrong);
    report.add(times(0, "c", What::update));
    CHECK_FALSE(report.passed());
  }
}

TEST_CASE("a report as text and as JSON", "[verify]") {
  Report report = three();
  report.add({.tensor = "layer \"0\"",
              .what = What::update,
              .error = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()},
              .rounding = {1e-6, 1e-6},
              .expected = 2,
              .step = 2,
              .ranks = {0, 3},
              .note = "element [1] is nan, should be 2"});
  // A gradient is listed by its parameter's name, as a tensor of its own. First values belong to no step.
  report.add({.tensor = "c", .state = "gradients/c", .what = What::gradient, .step = 1, .values = 100});
  report.add({.tensor = "c", .what = What::update, .step = 1, .values = 11});
  report.add({.tensor = "c", .what = What::initial, .step = 1, .values = 11});
  CHECK(verify::to_text(report, 2) ==
        "tensor     what           relative  rounding  multiple   step\n"
        "layer \"0\"  update              inf  5.00e-07       inf      2  FAILED: element [1] is nan, should be 2\n"
        "a          update         2.98e-08  2.98e-08         1      1\n"
        "compared with the float64 reference: 5 tensors, 111 values a step, over 1 step; up to 2 times what "
        "rounding does passes\n"
        "failed: 1 of 7 comparisons (each is a tensor and what of it, at its worst step), in 1 of the tensors\n");
  CHECK(verify::to_json(report, 0) ==
        R"({"passed": false, "steps": 1, "compared": 7, "failed": 1, "tensors": 5, "failed_tensors": 1, )"
        R"("values_per_step": 111, "limit": 2, "worst": [{"tensor": "layer \"0\"", "what": "update", )"
        R"("relative": null, "rounding": 5e-07, "multiple": null, "step": 2, "ranks": [0, 3], )"
        R"("note": "element [1] is nan, should be 2"}]})"
        "\n");
}
