#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

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

}  // namespace shardrun::conformance
