#include "core/train/replicas.h"

#include <algorithm>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// A set of states with copies: its axes, how many of the stages hold it, and the kinds of its states.
struct Set {
  std::vector<std::string> axes;
  std::int64_t stages = 0;
  std::set<graph::StateKind> kinds;
};

std::vector<Set> sets_of(const std::vector<std::string>& overrides) {
  const TemporaryFolder folder;
  const job::Job job = text_job_in(folder, overrides);
  const compile::Compiled compiled = compile::compile(job);
  std::vector<Set> sets;
  for (const partition::ReplicaSet& from : partition::replicas_of(compiled.graph, compiled.partition)) {
    Set& set = sets.emplace_back();
    for (const mesh::AxisId axis : from.axes) {
      set.axes.push_back(compiled.partition.placements.mesh.axes[axis].name);
    }
    set.stages = std::count(from.stages.begin(), from.stages.end(), true);
    for (const graph::StateId state : from.states) {
      set.kinds.insert(compiled.graph.states[state].kind);
    }
  }
  return sets;
}

using graph::StateKind;
using Axes = std::vector<std::string>;

}  // namespace

TEST_CASE("the states that ranks hold copies of follow from the plan", "[train]") {
  CHECK(sets_of({}).empty());

  const std::vector<Set> dp = sets_of({"job.strategy=dp", "job.ranks=3"});
  REQUIRE(dp.size() == 1);
  CHECK(dp[0].axes == Axes{"data"});
  CHECK(dp[0].kinds == std::set{StateKind::parameter, StateKind::optimizer, StateKind::metric});

  const std::vector<Set> zero1 = sets_of({"job.strategy=zero1", "job.ranks=3"});
  REQUIRE(zero1.size() == 1);
  CHECK(zero1[0].kinds == std::set{StateKind::parameter, StateKind::metric});

  const std::vector<Set> zero3 = sets_of({"job.strategy=zero3", "job.ranks=3"});
  REQUIRE(zero3.size() == 1);
  CHECK(zero3[0].kinds == std::set{StateKind::metric});

  // A tied table is on both stages, and its moments on one.
  const std::vector<Set> tied = sets_of({"job.strategy=pp", "job.ranks=2", "model.tied=true"});
  REQUIRE(tied.size() == 1);
  CHECK(tied[0].axes == Axes{"pipe"});
  CHECK(tied[0].stages == 2);
  CHECK(tied[0].kinds == std::set{StateKind::parameter, StateKind::metric});
}

TEST_CASE("a state split over some axes has copies along the other axes only", "[train]") {
  const std::vector<Set> sets =
      sets_of({"job.strategy=3d", "job.ranks=8", "mesh.data=2", "mesh.model=2", "mesh.pipe=2", "model.tied=false"});
  const auto has = [&](const Axes& axes, std::int64_t stages, StateKind kind) {
    return std::any_of(sets.begin(), sets.end(), [&](const Set& set) {
      return std::set(set.axes.begin(), set.axes.end()) == std::set(axes.begin(), axes.end()) && set.stages == stages &&
             set.kinds.contains(kind);
    });
  };
  CHECK(has({"data"}, 1, StateKind::parameter));           // what tensor parallelism splits
  CHECK(has({"data", "model"}, 1, StateKind::parameter));  // norms
  CHECK(has({"data", "model", "pipe"}, 2, StateKind::metric));
  CHECK(std::none_of(sets.begin(), sets.end(), [](const Set& set) {
    return set.stages == 1 && std::find(set.axes.begin(), set.axes.end(), "pipe") != set.axes.end();
  }));
}

TEST_CASE("ranks whose bits differ from the majority's are named", "[train]") {
  CHECK(train::dissent_of({0, 1, 2, 3}, {7, 7, 8, 7}).text == "rank 2 has other bits than ranks 0, 1 and 3");
  CHECK(train::dissent_of({1, 3, 5, 7, 9}, {7, 8, 7, 9, 7}).text ==
        "ranks 3 and 7 have other bits than ranks 1, 5 and 9");
  CHECK(train::dissent_of({4, 6}, {7, 8}).text ==
        "rank 4 | rank 6 have different bits, and no majority says whose are right");
  CHECK(train::dissent_of({0, 1, 2, 3}, {7, 7, 8, 8}).text ==
        "ranks 0 and 1 | ranks 2 and 3 have different bits, and no majority says whose are right");
  CHECK(train::dissent_of({0, 1, 2}, {7, 7, 8}).has_majority);
  CHECK_FALSE(train::dissent_of({0, 1, 2}, {6, 7, 8}).has_majority);
}

TEST_CASE("replicas that differ because of other kernels are told apart from changed data", "[train]") {
  device::DeviceFacts narrow{.vectors = "AVX-512", .bf16_products = "widened to float32"};
  device::DeviceFacts wide{.vectors = "AVX-512", .bf16_products = "oneDNN with AMX"};
  const auto cause = [&](bool mixed) {
    return train::cause_of({train::kernels_of(narrow, mixed), train::kernels_of(wide, mixed)}, "chaos, shm");
  };
  CHECK(cause(true) ==
        "The kernels of the ranks differ (AVX-512, bf16 products: oneDNN with AMX | AVX-512, bf16 products: widened to "
        "float32) and round differently: use machines and builds of one kind, or set [job] check_every = -1");
  CHECK(cause(false) ==
        "A memory, a processor or a transport (chaos, shm) has changed data: run the job again, and without that "
        "machine if it happens again");
  // Libraries of GPUs multiply float32, too: their kernels may differ even without mixed precision.
  narrow.kind = wide.kind = "cuda";
  CHECK(cause(false) == cause(true));
}
