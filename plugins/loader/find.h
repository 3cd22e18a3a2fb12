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

/// "strategy plugin 'rows' (/path)", for messages.
[[nodiscard]] std::string label_of(const Candidate& file);
[[nodiscard]] std::string label_of(const Plugin& plugin);

/// From the file's name. Nothing where it is not a plugin's.
[[nodiscard]] std::optional<Candidate> candidate_of(const std::filesystem::path& file);

/// The candidates of one directory, by file name. None where the directory does not exist or cannot be read.
[[nodiscard]] std::vector<Candidate> candidates_in(const std::filesystem::path& directory);

/// The first file of that kind and name. Throws Error{plugin} with the directories searched, the plugins there, and the
/// nearest name.
[[nodiscard]] std::filesystem::path find_plugin(const Directories& directories, PluginKind kind, std::string_view name);

}  // namespace shardrun::plugins
