#include "plugins/conformance/cases.h"

namespace shardrun::conformance {

std::vector<Case> transport_cases() {
  std::vector<Case> cases;
  add_collective_cases(cases);
  add_group_cases(cases);
  add_message_cases(cases);
  add_mismatch_cases(cases);
  add_failure_cases(cases);
  add_awaited_cases(cases);
  add_memory_cases(cases);
  add_queue_cases(cases);
  add_restart_cases(cases);
  add_death_cases(cases);
  return cases;
}

std::vector<StrategyCase> strategy_cases() {
  std::vector<StrategyCase> cases;
  add_option_cases(cases);
  add_plan_cases(cases);
  add_hook_cases(cases);
  add_purity_cases(cases);
  return cases;
}

/// Those with the same number of ranks are adjacent.
std::vector<ModelCase> model_cases() {
  std::vector<ModelCase> cases;
  add_model_cases(cases);
  add_op_cases(cases);
  add_training_cases(cases);
  return cases;
}

std::vector<EngineCase> engine_cases() {
  std::vector<EngineCase> cases;
  add_engine_cases(cases);
  return cases;
}

namespace {

template <class Cases>
std::vector<CaseInfo> infos_of(const Cases& cases) {
  std::vector<CaseInfo> infos;
  for (const auto& each : cases) {
    infos.push_back({.name = each.name, .ranks = each.ranks, .is_first_of_all = infos.empty()});
  }
  return infos;
}

}  // namespace

std::vector<CaseInfo> case_infos(plugins::PluginKind kind) {
  if (kind == plugins::PluginKind::strategy) {
    return infos_of(strategy_cases());
  }
  if (kind == plugins::PluginKind::model) {
    return infos_of(model_cases());
  }
  if (kind == plugins::PluginKind::engine) {
    return infos_of(engine_cases());
  }
  std::vector<CaseInfo> infos;
  for (const Case& each : transport_cases()) {
    infos.push_back({.name = each.name, .ranks = each.ranks, .victim = each.victim});
  }
  return infos;
}

}  // namespace shardrun::conformance
