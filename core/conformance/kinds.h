#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/conformance/store.h"
#include "core/conformance/words.h"

namespace shardrun::conformance {

/// A description of a case, for the program that starts its processes.
struct CaseInfo {
  std::string name;
  std::uint32_t ranks = 4;                   ///< of the world that it needs
  std::optional<std::uint32_t> victim = {};  ///< a rank that kills itself; then the case gets a world of its own
  bool is_first_of_all = false;              ///< where it fails, no other case can pass
};

/// The cases of one kind of plugin.
struct KindOfCases {
  plugins::PluginKind kind = plugins::PluginKind::transport;
  /// All cases; those with the same world are adjacent.
  std::vector<CaseInfo> (*infos)() = nullptr;
  /// Runs the cases that the words name in this process. `before`: the prefix for an exception's text, which tells
  /// where no case was running.
  void (*go_through)(Store& store, const MemberWords& words, std::string& before) = nullptr;
};

/// Adds a kind to those that can be checked. A program that is linked with the cases of transports alone checks only
/// those.
class RegisterKind {
 public:
  explicit RegisterKind(const KindOfCases& kind);
};

/// Throws Error{usage} for a kind whose cases this program does not have.
[[nodiscard]] const KindOfCases& cases_of(plugins::PluginKind kind);

/// Reports the end of a case to the program that started this process: empty, or what went wrong.
void report(int descriptor, std::string problem);
/// Reports a note on the case that runs.
void report_note(int descriptor, const std::string& note);

}  // namespace shardrun::conformance
