#include "core/verify/verify.h"
#include "tests/support/catch.h"
#include "tests/unit/verify/support.h"

using namespace shardrun;
using namespace shardrun::test;

TEST_CASE("whatever the split, the cpu computes what the reference does on one rank", "[verify]") {
  for (const VerifyCase& checked : verify_cases()) {
    std::vector<NamedPlan> plans = verify_plans();
    const std::vector<NamedPlan> stored = stored_plans(checked.model.graph);
    plans.insert(plans.end(), stored.begin(), stored.end());
    for (const NamedPlan& plan : plans) {
      const verify::Report report =
          verify::verify_interpreted(checked.workload(), partition::split(checked.model.graph, plan.plan), {});
      INFO(checked.model.name << ", " << plan.name << "\n" << verify::to_text(report));
      CHECK(report.passed());
      CHECK(report.steps() == 2);
    }
  }
}

TEST_CASE("an iteration split over ranks is compared field by field", "[verify]") {
  for (const ModelCase& model : model_cases()) {
    if (!model.microbatch_rows.empty()) {
      continue;
    }
    for (const std::uint32_t ranks : {1U, 2U, 4U}) {
      const partition::Plan plan = plan_of({{"x", ranks}}, {{"x", {"x"}}});
      const verify::Report report =
          verify::verify_interpreted({.graph = model.graph}, partition::split(model.graph, plan), {.steps = 4});
      INFO(model.name << " over " << ranks << "\n" << verify::to_text(report));
      CHECK(report.passed());
      CHECK(report.steps() == 4);
    }
  }
}
