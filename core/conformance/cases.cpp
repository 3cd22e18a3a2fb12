#include "core/conformance/cases.h"

#include "core/base/error.h"
#include "core/conformance/conformance.h"

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

const RegisterKind transports(
    {plugins::PluginKind::transport, [] { return infos_of(transport_cases()); },
     [](Store& store, const MemberWords& words, std::string& before) {
       if (plugins::Transport::load(words.directories, words.plugin).props().own_launcher_only) {
         throw Error(ErrorCode::transport, only_own_launcher);
       }
       go_through(transport_cases(),
                  Member(store, words.directories, words.plugin, words.rank, words.ranks, words.settings), words,
                  before);
     }});

}  // namespace
}  // namespace shardrun::conformance
