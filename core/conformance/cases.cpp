#include "core/conformance/cases.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/conformance/conformance.h"
#include "core/conformance/kinds.h"

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

namespace {

std::vector<CaseInfo> transport_infos() {
  std::vector<CaseInfo> infos;
  for (const Case& each : transport_cases()) {
    infos.push_back({.name = each.name, .ranks = each.ranks, .victim = each.victim});
  }
  return infos;
}

void go_through_transport(Store& store, const MemberWords& words, std::string& before) {
  if (plugins::Transport::load(words.directories, words.plugin).props().has(SR_TRANSPORT_OWN_LAUNCHER)) {
    throw Error(ErrorCode::transport, only_own_launcher);
  }
  const std::vector<Case> cases = transport_cases();
  Member member(store, words.directories, words.plugin, words.rank, words.ranks, words.settings);
  for (const std::size_t index : words.cases) {
    before.clear();
    cases.at(index).run(member);
    if (!cases[index].victim) {
      member.meet(fmt::format("the end of case {}", index), words.ranks);
    }
    report(words.report, "");
  }
  before = "closing the transport: ";
}

const RegisterKind transports({plugins::PluginKind::transport, transport_infos, go_through_transport});

}  // namespace
}  // namespace shardrun::conformance
