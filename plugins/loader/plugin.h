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

/// The directories in which plugins are searched, first to last.
using Directories = std::vector<std::filesystem::path>;

/// The directories to search, in this order:
/// - `configured`
/// - the entries of `environment` (SHARDRUN_PLUGIN_PATH, separated by colons; null: not set)
/// - those of the running executable: lib/shardrun/v1 beside it, as in a build tree, and <libdir>/shardrun/v1 where it
///   is installed
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

/// Reads the manifest of a file, without running its code. Throws Error{plugin} if opening would refuse the file before
/// loading it, because its name, place, form or manifest is wrong.
[[nodiscard]] Manifest inspect(const std::filesystem::path& file);

enum class LogLevel { info, warning };

/// Receives a plugin's log lines, on any thread. An empty sink writes to stderr.
using LogSink = std::function<void(LogLevel level, std::string_view plugin, std::string_view text)>;

/// A loaded and opened plugin of any kind. Closed with the last copy. Its file is never unloaded.
class Plugin {
 public:
  /// Finds the plugin, checks the file before any of its code runs, loads it and opens it. Throws Error{plugin}, which
  /// lists the directories searched or says what is wrong with the file.
  [[nodiscard]] static Plugin open(const Directories& directories, PluginKind kind, std::string_view name,
                                   LogSink log = {});

  /// Like `open`, for a file that has been found already.
  [[nodiscard]] static Plugin open_file(const Candidate& file, LogSink log);

  [[nodiscard]] const Manifest& manifest() const noexcept;
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept;
  [[nodiscard]] const std::filesystem::path& path() const noexcept;

  /// The plugin's table, valid as long as this object. The type of its functions depends on its kind.
  [[nodiscard]] const sr_plugin& table() const noexcept;

 private:
  struct State;
  explicit Plugin(std::shared_ptr<const State> state);

  std::shared_ptr<const State> state_;
};

/// An entry of the list of plugins. If `error` is not empty, it says why the file cannot be used, and only the fields
/// that could be read are set.
struct PluginInfo {
  std::filesystem::path path;
  std::string kind;  ///< from the file's name
  std::string name;
  std::string version;
  std::string abi;  ///< "1.0"
  std::vector<OptionSpec> options;
  std::vector<std::pair<std::string, std::string>> ops;  ///< that a model brings: names, and what each computes
  bool reads_sharding = false;                           ///< a strategy that uses the section [sharding]
  std::filesystem::path shadowed_by;  ///< the file of this kind and name that is found first, if it is another
  std::string error;
};

/// The names of the plugins of one kind, sorted. Reads only file names.
[[nodiscard]] std::vector<std::string> plugin_names(const Directories& directories, PluginKind kind);

/// Lists every plugin in the directories, by directory and file name. Opens each plugin to learn its options, first in
/// a forked process. A plugin that cannot be opened gets an `error`. A directory that cannot be read adds nothing.
[[nodiscard]] std::vector<PluginInfo> list_plugins(const Directories& directories);

}  // namespace shardrun::plugins
