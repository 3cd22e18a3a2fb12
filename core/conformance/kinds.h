#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/conformance/peer.h"
#include "plugins/loader/plugin.h"

namespace shardrun::conformance {

/// The command line of a process of a check.
struct MemberWords {
  pid_t parent = 0;
  int store = -1;  ///< descriptor of the store that the processes share
  /// Descriptor to which the process writes, for each case, a line per note and a line with the problem, empty if none.
  int report = -1;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  plugins::PluginKind kind = plugins::PluginKind::transport;
  std::string plugin;
  std::vector<std::size_t> cases;
  std::vector<std::string> settings = {};  ///< CheckOptions::settings
  plugins::Directories directories;
};

/// The first character of lines with a note on the current case.
constexpr char note_mark = '\t';

/// The words with which a process's report begins if the plugin cannot be opened.
[[nodiscard]] std::string opening_words(plugins::PluginKind kind);

[[nodiscard]] std::vector<std::string> to_words(const MemberWords& words);
/// Parses words that to_words() made. Throws Error{usage} for other words.
[[nodiscard]] MemberWords parse_words(std::span<const std::string> words);

/// Describes a case to the program that starts its processes.
struct CaseInfo {
  std::string name;
  std::uint32_t ranks = 4;                   ///< number of ranks that it needs
  std::optional<std::uint32_t> victim = {};  ///< the rank that ends in the case, which then has processes of its own
};

/// The name of the case that opens the plugin. If it fails, the other cases are not run.
constexpr const char* opening_case = "opening";

/// A case: a fact that must hold for every plugin of a kind. Every rank calls `run` with its own instance of the
/// plugin; it throws if the fact does not hold.
template <class RankMember, std::uint32_t usual_ranks>
struct CaseOf {
  std::string name;
  std::function<void(RankMember&)> run;
  std::uint32_t ranks = usual_ranks;
  std::optional<std::uint32_t> victim = {};
};

/// The cases for a kind of plugin.
struct KindOfCases {
  plugins::PluginKind kind = plugins::PluginKind::transport;
  /// Describes all cases. Cases with the same number of ranks are adjacent.
  std::vector<CaseInfo> (*infos)() = nullptr;
  /// Runs the cases that the words name, in this process. `before`: set to the prefix for the text of an exception that
  /// is thrown while no case runs.
  void (*go_through)(Store& store, const MemberWords& words, std::string& before) = nullptr;
};

/// Registers the cases for a kind of plugin. A program can check only those kinds whose cases it is linked with.
class RegisterKind {
 public:
  explicit RegisterKind(const KindOfCases& kind);
};

/// The cases for a kind. Throws Error{usage} if this program is not linked with them.
[[nodiscard]] const KindOfCases& cases_of(plugins::PluginKind kind);

/// Reports the end of a case to the parent process. `problem`: empty if there was none.
void report(int descriptor, std::string problem);
/// Reports a note on the current case.
void report_note(int descriptor, const std::string& note);

/// Implements KindOfCases::infos for these cases.
template <class Cases>
[[nodiscard]] std::vector<CaseInfo> infos_of(const Cases& cases) {
  std::vector<CaseInfo> infos;
  for (const auto& each : cases) {
    infos.push_back({.name = each.name, .ranks = each.ranks, .victim = each.victim});
  }
  return infos;
}

/// Implements KindOfCases::go_through for these cases.
template <class Cases, class RankMember>
void go_through(const Cases& cases, RankMember&& member, const MemberWords& words, std::string& before) {
  for (const std::size_t index : words.cases) {
    const auto& each = cases.at(index);
    before.clear();
    each.run(member);
    if (!each.victim) {
      member.meet("the end of case " + std::to_string(index), words.ranks);
    }
    for (const std::string& note : member.take_notes()) {
      report_note(words.report, note);
    }
    report(words.report, "");
  }
  before = "closing the " + std::string(to_string(words.kind)) + ": ";
}

}  // namespace shardrun::conformance
