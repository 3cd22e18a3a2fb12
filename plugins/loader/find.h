#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

/// A file that is named like a plugin: shardrun_KIND_NAME.so.
struct Candidate {
  std::filesystem::path path;
  std::string kind;
  std::string name;
};

/// "strategy plugin 'rows' (/path)", as messages call it.
[[nodiscard]] std::string label_of(const Candidate& file);
[[nodiscard]] std::string label_of(const Plugin& plugin);

/// What the file's name says; nothing where it is not named like a plugin.
[[nodiscard]] std::optional<Candidate> candidate_of(const std::filesystem::path& file);

/// The candidates of one directory by file name; none where it does not exist or cannot be read.
[[nodiscard]] std::vector<Candidate> candidates_in(const std::filesystem::path& directory);

/// The first file of that kind and name. Throws Error{plugin} that lists where it was looked for, what there is
/// and the nearest name.
[[nodiscard]] std::filesystem::path find_plugin(const Directories& directories, PluginKind kind, std::string_view name);

}  // namespace shardrun::plugins
