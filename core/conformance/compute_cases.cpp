#include "core/conformance/engine_member.h"
#include "core/conformance/model_member.h"
#include "core/conformance/strategy_member.h"

#include <fmt/format.h>

#include "core/conformance/kinds.h"

namespace shardrun::conformance {
namespace {

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

template <class Cases>
std::vector<CaseInfo> infos_of(const Cases& cases) {
  std::vector<CaseInfo> infos;
  for (const auto& each : cases) {
    infos.push_back({.name = each.name, .ranks = each.ranks, .is_first_of_all = infos.empty()});
  }
  return infos;
}

/// `cases`: of one kind of plugin, for a member of that kind.
template <class Cases, class SomeMember>
void go_through(const Cases& cases, SomeMember&& member, const MemberWords& words, std::string& before) {
  for (const std::size_t index : words.cases) {
    before.clear();
    cases.at(index).run(member);
    member.meet(fmt::format("the end of case {}", index), words.ranks);
    for (const std::string& note : member.take_notes()) {
      report_note(words.report, note);
    }
    report(words.report, "");
  }
  before = fmt::format("closing the {}: ", to_string(words.kind));
}

const RegisterKind strategies({plugins::PluginKind::strategy, [] { return infos_of(strategy_cases()); },
                               [](Store& store, const MemberWords& words, std::string& before) {
                                 go_through(strategy_cases(),
                                            StrategyMember(store, words.directories, words.plugin, words.rank), words,
                                            before);
                               }});
const RegisterKind models({plugins::PluginKind::model, [] { return infos_of(model_cases()); },
                           [](Store& store, const MemberWords& words, std::string& before) {
                             go_through(model_cases(),
                                        ModelMember(store, words.directories, words.plugin, words.rank, words.settings),
                                        words, before);
                           }});
const RegisterKind engines({plugins::PluginKind::engine, [] { return infos_of(engine_cases()); },
                            [](Store& store, const MemberWords& words, std::string& before) {
                              go_through(
                                  engine_cases(),
                                  EngineMember(store, words.directories, words.plugin, words.rank, words.settings),
                                  words, before);
                            }});

}  // namespace
}  // namespace shardrun::conformance
