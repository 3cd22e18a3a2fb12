#include "core/conformance/strategy_member.h"

#include <fmt/format.h>

#include <cstdlib>
#include <sstream>
#include <utility>

#include "plugins/loader/find.h"

namespace shardrun::conformance {

using plugins::Plugin;
using plugins::PluginKind;

void require_same(const Answer& expected, const Answer& found, const std::string& what) {
  if (expected == found) {
    return;
  }
  std::istringstream expected_lines(expected.text);
  std::istringstream found_lines(found.text);
  std::string a;
  std::string b;
  while (a == b) {
    const bool more = static_cast<bool>(std::getline(expected_lines, a));
    if (!std::getline(found_lines, b) && !more) {
      break;
    }
  }
  throw Failure(fmt::format("{}: '{}' and '{}'", what, a, b));
}

StrategyMember::StrategyMember(Store& store, const plugins::Directories& directories, std::string strategy,
                               std::uint32_t rank)
    : Peer(store, rank), directories_(directories), name_(std::move(strategy)) {
  // Launchers set this variable for their ranks. Plans must not depend on it.
  setenv("RANK", fmt::format("{}", rank).c_str(), 1);
}

Plugin StrategyMember::open_another() const {
  return Plugin::open(directories_, PluginKind::strategy, name_,
                      [](plugins::LogLevel, std::string_view, std::string_view) {});
}

const Plugin& StrategyMember::strategy() {
  if (!strategy_) {
    strategy_.emplace(open_another());
  }
  return *strategy_;
}

std::filesystem::path StrategyMember::file() const {
  return plugins::find_plugin(directories_, PluginKind::strategy, name_);
}

}  // namespace shardrun::conformance
