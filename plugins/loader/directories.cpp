#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "plugins/loader/plugin.h"

namespace shardrun::plugins {
namespace {

void append(Directories& directories, std::string_view entry, std::string_view origin) {
  if (entry.empty()) {
    return;
  }
  const std::filesystem::path directory(entry);
  if (!directory.is_absolute()) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} holds '{}', which is relative: plugins are never looked for in the working directory, "
                            "give the absolute path",
                            origin, entry));
  }
  directories.push_back(directory.lexically_normal());
}

/// Removes repeated directories: a plugin in one of them would count as shadowed by itself.
void remove_repeated(Directories& directories) {
  Directories unique;
  for (std::filesystem::path& directory : directories) {
    if (std::ranges::find(unique, directory) == unique.end()) {
      unique.push_back(std::move(directory));
    }
  }
  directories = std::move(unique);
}

}  // namespace

Directories plugin_directories(std::span<const std::filesystem::path> configured, const char* environment) {
  Directories directories;
  for (const std::filesystem::path& entry : configured) {
    append(directories, entry.native(), "[plugins] path");
  }
  std::string_view rest = environment != nullptr ? environment : "";
  while (!rest.empty()) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    append(directories, rest.substr(0, colon), "SHARDRUN_PLUGIN_PATH");
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  directories.push_back(program / "lib/shardrun/v1");
  directories.push_back((program / SHARDRUN_PLUGINS_FROM_BINDIR).lexically_normal());
  remove_repeated(directories);
  return directories;
}

}  // namespace shardrun::plugins
