#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "core/base/error.h"
#include "core/conformance/conformance.h"
#include "core/conformance/kinds.h"
#include "core/conformance/words.h"

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

/// The kinds whose cases this program has. Only static objects add to it.
std::vector<KindOfCases>& kinds() {
  static std::vector<KindOfCases> known;
  return known;
}

}  // namespace

RegisterKind::RegisterKind(const KindOfCases& kind) { kinds().push_back(kind); }

const KindOfCases& cases_of(plugins::PluginKind kind) {
  const auto found = std::ranges::find(kinds(), kind, &KindOfCases::kind);
  if (found == kinds().end()) {
    throw Error(ErrorCode::usage, fmt::format("this program has no cases for a plugin of kind {}", to_string(kind)));
  }
  return *found;
}

void report_note(int descriptor, const std::string& note) { write_line(descriptor, note_mark + note); }

void report(int descriptor, std::string problem) {
  std::replace(problem.begin(), problem.end(), note_mark, ' ');
  write_line(descriptor, std::move(problem));
}

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
    cases_of(parsed.kind).go_through(store, parsed, before);
  } catch (const std::exception& failure) {
    const auto* const error = dynamic_cast<const Error*>(&failure);
    const bool is_consequence = store.aborted() && error != nullptr &&
                                (error->code() == ErrorCode::aborted || error->code() == ErrorCode::peer_lost);
    store.abort();
    report(parsed.report, is_consequence ? other_failed : before + failure.what());
    std::_Exit(1);
  }
  return 0;
}

}  // namespace shardrun::conformance
