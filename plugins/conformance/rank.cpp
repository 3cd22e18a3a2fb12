#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>

#include "core/base/error.h"
#include "plugins/conformance/cases.h"
#include "plugins/conformance/conformance.h"
#include "plugins/conformance/words.h"

namespace shardrun::conformance {
namespace {

/// Tells the parent one line, whole.
void report(int descriptor, std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  line = line.substr(0, 3000) + '\n';
  if (write(descriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::_Exit(1);
  }
}

}  // namespace

int run_rank(std::span<const std::string> words) {
  const RankWords parsed = parse_words(words);
  // Nobody outlives the process that asked for it.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parsed.parent) {
    return 1;
  }
  Store store(parsed.store);
  std::string doing = "opening the transport";
  try {
    const std::vector<Case> cases = all_cases();
    Member member(store, parsed.directories, parsed.transport, parsed.rank, parsed.ranks);
    for (const std::size_t index : parsed.cases) {
      doing = cases[index].name;
      cases[index].run(member);
      if (!cases[index].victim) {
        member.meet(fmt::format("the end of case {}", index), parsed.ranks);
      }
      report(parsed.report, "");
    }
    doing = "closing the transport";
  } catch (const std::exception& failure) {
    store.abort();
    report(parsed.report, doing + ": " + failure.what());
    std::_Exit(1);
  }
  return 0;
}

}  // namespace shardrun::conformance
