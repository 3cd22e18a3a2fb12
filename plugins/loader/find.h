#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

/// A file with a plugin's name: shardrun_KIND_NAME.so.
struct Candidate {
  std::filesystem::path path;
  std::string kind;
  std::string name;
};

/// A text for messages: "strategy plugin 'rows' (/path)".
[[nodiscard]] std::string label_of(const Candidate& file);
[[nodiscard]] std::string label_of(const Plugin& plugin);

/// Parses a file's name. Returns nothing if it is not a plugin's.
[[nodiscard]] std::optional<Candidate> candidate_of(const std::filesystem::path& file);

/// The candidates of one directory, by file name; none if the directory does not exist or cannot be read.
[[nodiscard]] std::vector<Candidate> candidates_in(const std::filesystem::path& directory);

/// The first file of that kind and name. Throws Error{plugin} that lists the directories searched, the plugins found
/// there, and the nearest name.
[[nodiscard]] std::filesystem::path find_plugin(const Directories& directories, PluginKind kind, std::string_view name);

}  // namespace shardrun::plugins
