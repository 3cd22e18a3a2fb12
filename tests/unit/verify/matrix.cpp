#include <algorithm>
#include <map>

#include "core/verify/verify.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/unit/verify/support.h"

using namespace shardrun;
using namespace shardrun::test;
using verify::What;

namespace {

void check_matrix(const std::vector<VerifyCase>& cases) {
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const VerifyCase& checked = cases[c];
    std::vector<NamedPlan> plans = verify_plans();
    const std::vector<NamedPlan> stored = stored_plans(checked.model.graph);
    plans.insert(plans.end(), stored.begin(), stored.end());
    const auto every = depth<std::size_t>(1, 2, 8);
    for (std::size_t p = c % every; p < plans.size(); p += every) {
      const NamedPlan& plan = plans[p];
      const verify::Report report =
          verify::verify_interpreted(checked.workload(), partition::split(checked.model.graph, plan.plan), {});
      INFO(checked.model.name << ", " << plan.name << "\n" << verify::to_text(report));
      CHECK(report.passed());
      CHECK(report.steps() == 2);
    }
  }
}

/// The graph without its writes to the state, which therefore keeps its first values.
graph::Graph without_writes(graph::Graph graph, const std::string& state) {
  for (graph::Function& function : graph.functions) {
    std::erase_if(function.writes,
                  [&](const graph::StateWrite& write) { return graph.states[write.state].name == state; });
  }
  return graph;
}

}  // namespace

TEST_CASE("the split cpu agrees with the reference on one rank for every split", "[verify]") {
  check_matrix(verify_cases());
}

TEST_CASE("in mixed precision the split cpu agrees with the reference on one rank", "[verify]") {
  check_matrix(verify_cases(graph::DType::f32));
  check_matrix(verify_cases(graph::DType::bf16));
}

TEST_CASE("a parameter that is not the rounded master fails the verification", "[verify]") {
  const VerifyCase checked = verify_cases(graph::DType::f32).front();
  VerifyCase faulty = checked;
  faulty.model.graph = without_writes(faulty.model.graph, "final_norm/gain");
  const partition::Partition partition = partition::split(faulty.model.graph, data_parallel(2));
  const verify::Report report = verify::verify_interpreted(checked.workload(), partition, {});
  INFO(verify::to_text(report));
  for (const verify::Difference& difference : report.worst()) {
    CHECK(difference.passed() == (difference.tensor != "final_norm/gain" || difference.what != What::update));
  }
}

TEST_CASE("everything that a step computes is compared with the reference", "[verify]") {
  for (const VerifyCase& checked : verify_cases()) {
    const graph::Graph& graph = checked.model.graph;
    const verify::Report report =
        verify::verify_interpreted(checked.workload(), partition::split(graph, data_parallel(2)), {});
    std::map<What, std::size_t> compared;
    for (const verify::Difference& difference : report.worst()) {
      ++compared[difference.what];
    }
    const auto count = [&](graph::StateKind kind) {
      return static_cast<std::size_t>(std::count_if(graph.states.begin(), graph.states.end(),
                                                    [&](const auto& state) { return state.kind == kind; }));
    };
    const std::size_t parameters = count(graph::StateKind::parameter);
    const std::size_t lasting = parameters + count(graph::StateKind::optimizer);
    INFO(checked.model.name);
    CHECK(compared == std::map<What, std::size_t>{{What::initial, lasting},
                                                  {What::loss, 1},
                                                  {What::gradient, parameters},
                                                  {What::gradient_norm, 1},
                                                  {What::update, lasting},
                                                  {What::evaluation, 1},
                                                  {What::replica, graph.states.size()}});
  }
}

TEST_CASE("an iteration split over ranks is compared field by field", "[verify]") {
  for (const ModelCase& model : model_cases()) {
    if (!model.microbatch_rows.empty()) {
      continue;
    }
    const bool has_columns = model.graph.states.front().type.shape.size() == 2;
    for (const std::uint32_t ranks : {1U, 2U, 4U, 6U}) {
      const plan::Plan plan = has_columns && ranks == 6 ? plan_of({{"a", 2}, {"b", 3}}, {{"x", {"b"}}, {"y", {"a"}}})
                                                        : plan_of({{"x", ranks}}, {{"x", {"x"}}});
      const verify::Report report =
          verify::verify_interpreted({.graph = model.graph}, partition::split(model.graph, plan), {.steps = 4});
      INFO(model.name << " over " << ranks << "\n" << verify::to_text(report));
      CHECK(report.passed());
      CHECK(report.steps() == 4);
    }
  }
}
