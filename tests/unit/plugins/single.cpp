#include "tests/support/catch.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::plan;
using namespace shardrun::plugins;

TEST_CASE("single leaves everything where it is", "[plugins]") {
  const Strategy single = Strategy::open({SHARDRUN_BUILT_PLUGINS}, "single");
  StrategyRequest request = small_request(1);
  CHECK(single.make_plan(request) == plan::Plan{.strategy = "single"});

  request.mesh = {{"data", 1}, {"model", 1}};
  const plan::Plan plan = single.make_plan(request);
  CHECK(plan.mesh == request.mesh);
  CHECK(plan.axes.empty());
}

TEST_CASE("single refuses a job of several ranks and says what to do", "[plugins]") {
  const Strategy single = Strategy::open({SHARDRUN_BUILT_PLUGINS}, "single");
  const auto error = [&](const StrategyRequest& request) {
    return error_of([&] { static_cast<void>(single.make_plan(request)); });
  };
  StrategyRequest request = small_request(4);
  CHECK(error(request) ==
        "2: strategy 'single': it keeps everything on one rank, but the job has 4 ranks: set ranks = 1 in [job], or "
        "choose a strategy that splits ('shardrun plugins' lists them)");

  request.ranks = 1;
  request.mesh = {{"data", 2}};
  CHECK(error(request) ==
        "2: strategy 'single': it keeps everything on one rank, but [mesh] has data = 2: set it to 1 or leave [mesh] "
        "out");
}
