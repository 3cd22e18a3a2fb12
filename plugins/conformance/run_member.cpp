#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "core/base/error.h"
#include "plugins/conformance/cases.h"
#include "plugins/conformance/conformance.h"
#include "plugins/conformance/words.h"

namespace shardrun::conformance {
namespace {

/// Writes one whole line to the parent.
void write_line(int descriptor, std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  line = line.substr(0, 3000) + '\n';
  if (write(descriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::_Exit(1);
  }
}

/// Reports the end of a case: empty, or what went wrong.
void report(int descriptor, std::string problem) {
  std::replace(problem.begin(), problem.end(), note_mark, ' ');
  write_line(descriptor, std::move(problem));
}

/// Runs the cases. `before`: the prefix for an exception's text, which tells where no case was running.
void go_through_transport(Store& store, const MemberWords& words, std::string& before) {
  if (plugins::Transport::load(words.directories, words.plugin).props().own_launcher_only) {
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

/// `cases`: of one kind of plugin, for a member of that kind.
template <class Cases, class SomeMember>
void go_through(const Cases& cases, SomeMember& member, const MemberWords& words, std::string& before) {
  for (const std::size_t index : words.cases) {
    before.clear();
    cases.at(index).run(member);
    member.meet(fmt::format("the end of case {}", index), words.ranks);
    for (const std::string& note : member.take_notes()) {
      write_line(words.report, note_mark + note);
    }
    report(words.report, "");
  }
  before = fmt::format("closing the {}: ", to_string(words.kind));
}

void go_through_kind(Store& store, const MemberWords& words, std::string& before) {
  if (words.kind == plugins::PluginKind::transport) {
    go_through_transport(store, words, before);
  } else if (words.kind == plugins::PluginKind::strategy) {
    StrategyMember member(store, words.directories, words.plugin, words.rank);
    go_through(strategy_cases(), member, words, before);
  } else if (words.kind == plugins::PluginKind::engine) {
    EngineMember member(store, words.directories, words.plugin, words.rank, words.settings);
    go_through(engine_cases(), member, words, before);
  } else {
    ModelMember member(store, words.directories, words.plugin, words.rank, words.settings);
    go_through(model_cases(), member, words, before);
  }
}

}  // namespace

int run_member(std::span<const std::string> words) {
  const MemberWords parsed = parse_words(words);
  // The process ends with its parent, and a crash leaves no file.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &none);
  if (getppid() != parsed.parent) {
    return 1;
  }
  Store store(parsed.store);
  std::string before = opening_words(parsed.kind);
  try {
    go_through_kind(store, parsed, before);
  } catch (const std::exception& failure) {
    store.abort();
    report(parsed.report, before + failure.what());
    std::_Exit(1);
  }
  return 0;
}

}  // namespace shardrun::conformance
