#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/options/options.h"

struct sr_plugin;

namespace shardrun::plugins {

struct Candidate;

enum class PluginKind { strategy, transport };

[[nodiscard]] std::string_view to_string(PluginKind kind);

/// Where plugins are looked for, first to last.
using Directories = std::vector<std::filesystem::path>;

/// `configured`, then the entries of `environment` (SHARDRUN_PLUGIN_PATH, separated by colons; null: not set),
/// then those that belong to the running executable: lib/shardrun/v1 beside it, as in a build tree, and
/// <libdir>/shardrun/v1 of its installation. The working directory is never searched: a relative entry
/// throws Error{plugin}.
[[nodiscard]] Directories plugin_directories(std::span<const std::filesystem::path> configured,
                                             const char* environment);

/// Who a plugin says it is.
struct Manifest {
  PluginKind kind = PluginKind::strategy;
  std::string name;
  std::string version;
  std::uint32_t abi_major = 0;
  std::uint32_t abi_minor = 0;
  std::vector<std::string> aliases;  ///< what other programs call it
};

/// Who a file says it is; none of its code has run. Throws Error{plugin} for what opening it would refuse before it
/// loads it: a file whose name, place, form or manifest is wrong.
[[nodiscard]] Manifest inspect(const std::filesystem::path& file);

enum class LogLevel { info, warning };

/// Takes a plugin's log lines, from any thread. An empty one stands for stderr.
using LogSink = std::function<void(LogLevel level, std::string_view plugin, std::string_view text)>;

/// A loaded and opened plugin of any kind; closed with the last copy. Its file is never unloaded.
class Plugin {
 public:
  /// Finds the plugin, checks the file before any of its code runs, loads and opens it.
  /// Throws Error{plugin}, which says where it was looked for or what is wrong with the file.
  [[nodiscard]] static Plugin open(const Directories& directories, PluginKind kind, std::string_view name,
                                   LogSink log = {});

  /// The same for a file that is already found.
  [[nodiscard]] static Plugin open_file(const Candidate& file, LogSink log);

  [[nodiscard]] const Manifest& manifest() const noexcept;
  [[nodiscard]] const std::vector<OptionSpec>& options() const noexcept;
  [[nodiscard]] const std::filesystem::path& path() const noexcept;

  /// The plugin's table, valid as long as this object; the wrapper of its kind knows what it holds.
  [[nodiscard]] const sr_plugin& table() const noexcept;

 private:
  struct State;
  explicit Plugin(std::shared_ptr<const State> state);

  std::shared_ptr<const State> state_;
};

/// One line of the list of plugins. Where `error` is not empty, it says why the file cannot be used, and only
/// what could be read is filled in.
struct PluginInfo {
  std::filesystem::path path;
  std::string kind;  ///< from the file's name
  std::string name;
  std::string version;
  std::string abi;  ///< "1.0"
  std::vector<OptionSpec> options;
  bool reads_sharding = false;        ///< a strategy that takes what is split from [sharding]
  std::filesystem::path shadowed_by;  ///< the file of this kind and name that is found first, if not this one
  std::string error;
};

/// The names of the plugins of one kind, sorted, from the names of their files alone.
[[nodiscard]] std::vector<std::string> plugin_names(const Directories& directories, PluginKind kind);

/// Every plugin in the directories, by directory and file name. Opens each to learn its options, in a forked process
/// before it does here; what cannot be opened says why. A directory that cannot be read adds nothing.
[[nodiscard]] std::vector<PluginInfo> list_plugins(const Directories& directories);

}  // namespace shardrun::plugins
