#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/options/options.h"

struct sr_plugin;

namespace shardrun::plugins {

struct Candidate;

enum class PluginKind { strategy, transport, model, engine };

[[nodiscard]] std::string_view to_string(PluginKind kind);

/// Where plugins are searched, first to last.
using Directories = std::vector<std::filesystem::path>;

/// The directories to search, in this order:
/// - `configured`
/// - the entries of `environment` (SHARDRUN_PLUGIN_PATH, separated by colons; null: not set)
/// - those of the running executable: lib/shardrun/v1 beside it, as in a build tree, and <libdir>/shardrun/v1 of its
///   installation
/// The working directory is never searched: a relative entry throws Error{plugin}.
[[nodiscard]] Directories plugin_directories(std::span<const std::filesystem::path> configured,
                                             const char* environment);

/// A plugin's description of itself.
struct Manifest {
  PluginKind kind = PluginKind::strategy;
  std::string name;
  std::string version;
  std::uint32_t abi_major = 0;
  std::uint32_t abi_minor = 0;
  std::vector<std::string> aliases;  ///< its names in other programs
};

/// The manifest of a file, without running its code. Throws Error{plugin} where opening would refuse the file before
/// loading it: a wrong name, place, form or manifest.
[[nodiscard]] Manifest inspect(const std::filesystem::path& file);

enum class LogLevel { info, warning };

/// Receives a plugin's log lines, on any thread. An empty sink writes to stderr.
using LogSink = std::function<void(LogLevel level, std::string_view plugin, std::string_view text)>;

/// A loaded and opened plugin of any kind. Closed with the last copy. Its file is never unloaded.
class Plugin {
 public:
  /// Finds the plugin, checks the file before any of its code runs, loads it and opens it. Throws Error{plugin} with
  /// the directories searched, or with what is wrong with the file.
  [[nodiscard]] static Plugin open(const Directories& directories, PluginKind kind, std::string_view name,
                                   LogSink log = {});

  /// As `open`, for a file that was found already.
  [[nodiscard]] static Plugin open_file(const Candidate& file, LogSink log);

  [[nodiscard]] const Manifest& manifest() const noexcept;
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept;
  [[nodiscard]] const std::filesystem::path& path() const noexcept;

  /// The plugin's table, valid as long as this object. Its kind decides the type of its functions.
  [[nodiscard]] const sr_plugin& table() const noexcept;

 private:
  struct State;
  explicit Plugin(std::shared_ptr<const State> state);

  std::shared_ptr<const State> state_;
};

/// An entry of the list of plugins. Where `error` is not empty, it says why the file cannot be used, and only what
/// could be read is set.
struct PluginInfo {
  std::filesystem::path path;
  std::string kind;  ///< from the file's name
  std::string name;
  std::string version;
  std::string abi;  ///< "1.0"
  std::vector<OptionSpec> options;
  std::vector<std::pair<std::string, std::string>> ops;  ///< that a model brings: names, and what they compute
  bool reads_sharding = false;                           ///< a strategy that uses the section [sharding]
  std::filesystem::path shadowed_by;  ///< the file of this kind and name that is found first, where it is not this one
  std::string error;
};

/// The names of the plugins of one kind, sorted. Reads only the names of files.
[[nodiscard]] std::vector<std::string> plugin_names(const Directories& directories, PluginKind kind);

/// Every plugin in the directories, by directory and file name. Opens each to learn its options, first in a forked
/// process. One that cannot be opened gets an `error`. A directory that cannot be read adds nothing.
[[nodiscard]] std::vector<PluginInfo> list_plugins(const Directories& directories);

}  // namespace shardrun::plugins
