#include "core/verify/report.h"

#include <limits>

#include "tests/support/catch.h"

using namespace shardrun;
using verify::Difference;
using verify::Report;
using verify::What;

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

TEST_CASE("a report is sorted by how much of its tolerance each took", "[verify]") {
  const std::vector<Difference> worst = three().worst();
  REQUIRE(worst.size() == 3);
  CHECK((worst[0].tensor == "a" && worst[0].what == What::update));
  CHECK(worst[1].tensor == "b");
  CHECK((worst[2].tensor == "a" && worst[2].what == What::gradient));
}

TEST_CASE("a report keeps the worst step of each", "[verify]") {
  Report report = three();
  report.add({.tensor = "b", .what = What::gradient, .relative = 1e-6, .tolerance = 1e-5, .step = 2});
  CHECK(report.worst()[1].step == 1);
  report.add({.tensor = "b", .what = What::gradient, .relative = 3e-6, .tolerance = 1e-5, .step = 3});
  CHECK(report.worst()[1].step == 3);
  CHECK(report.compared() == 3);
}

TEST_CASE("one failure fails a report, and so do NaN and nothing at all", "[verify]") {
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
