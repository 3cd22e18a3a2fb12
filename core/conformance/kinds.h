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
  bool is_first_of_all = false;              ///< where it fails, no other case can pass
};

/// A case (cases.h) for plugins that compute. Every rank is a member with its own instance of the plugin.
template <class RankMember, std::uint32_t usual_ranks>
struct ComputeCase {
  std::string name;
  std::function<void(RankMember&)> run;
  std::uint32_t ranks = usual_ranks;
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
