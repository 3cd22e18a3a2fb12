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
  int store = -1;   ///< descriptor
  int report = -1;  ///< descriptor; gets a line per case, empty or what went wrong, after its notes
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  plugins::PluginKind kind = plugins::PluginKind::transport;
  std::string plugin;
  std::vector<std::size_t> cases;
  std::vector<std::string> settings = {};  ///< CheckOptions::settings
  plugins::Directories directories;
};

/// The first character of a line that is a note on the case that runs.
constexpr char note_mark = '\t';

/// The prefix of a process's report where its plugin cannot be opened.
[[nodiscard]] std::string opening_words(plugins::PluginKind kind);

[[nodiscard]] std::vector<std::string> to_words(const MemberWords& words);
/// Throws Error{usage} for words that to_words does not write.
[[nodiscard]] MemberWords parse_words(std::span<const std::string> words);

/// A description of a case, for the program that starts its processes.
struct CaseInfo {
  std::string name;
  std::uint32_t ranks = 4;                   ///< of the world that it needs
  std::optional<std::uint32_t> victim = {};  ///< a rank that kills itself; then the case gets a world of its own
};

/// If the case of this name fails, no other can pass.
constexpr const char* opening_case = "opening";

/// Something that every plugin of a kind must do. Every rank of the world calls `run`, with a plugin of its own. It
/// throws where the plugin does not.
template <class RankMember, std::uint32_t usual_ranks>
struct CaseOf {
  std::string name;
  std::function<void(RankMember&)> run;
  std::uint32_t ranks = usual_ranks;
  std::optional<std::uint32_t> victim = {};
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

/// KindOfCases::infos for these cases.
template <class Cases>
[[nodiscard]] std::vector<CaseInfo> infos_of(const Cases& cases) {
  std::vector<CaseInfo> infos;
  for (const auto& each : cases) {
    infos.push_back({.name = each.name, .ranks = each.ranks, .victim = each.victim});
  }
  return infos;
}

/// KindOfCases::go_through for these cases.
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
