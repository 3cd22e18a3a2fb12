#include "plugins/loader/find.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <system_error>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/base/text.h"

namespace shardrun::plugins {
namespace {

constexpr std::string_view prefix = "shardrun_";
constexpr std::string_view suffix = ".so";

/// Whether a text can be a plugin's name. Names come from a job file and become part of a path, so they must not
/// contain anything that leads elsewhere.
bool is_name(std::string_view name) {
  const auto is_part = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  return !name.empty() && std::ranges::all_of(name, is_part);
}

/// Suggests a plugin for an unknown name, as text for an error: one with a similar name, or one that has the name as an
/// alias in its manifest.
std::string hint_for(const Directories& directories, PluginKind kind, std::string_view name,
                     const std::vector<std::string>& available) {
  if (const std::string_view near = nearest_name(name, available); folded(near) == folded(name) && !near.empty()) {
    return did_you_mean(name, available);
  }
  std::set<std::string> meant;
  for (const std::filesystem::path& directory : directories) {
    for (const Candidate& candidate : candidates_in(directory)) {
      try {
        const auto is_same = [&](const std::string& alias) { return folded(alias) == folded(name); };
        if (candidate.kind == to_string(kind) && std::ranges::any_of(inspect(candidate.path).aliases, is_same)) {
          meant.insert("'" + candidate.name + "'");
        }
      } catch (const Error&) {
        // A file that cannot be read is skipped: 'shardrun plugins' reports what is wrong with it.
      }
    }
  }
  return meant.empty() ? did_you_mean(name, available) : fmt::format(" (it is {} here)", fmt::join(meant, " or "));
}

[[noreturn]] void throw_missing(const Directories& directories, PluginKind kind, std::string_view name) {
  std::vector<std::string> searched;
  for (const std::filesystem::path& directory : directories) {
    std::error_code ignored;
    searched.push_back(directory.string() +
                       (std::filesystem::is_directory(directory, ignored) ? "" : " (no such directory)"));
  }
  const std::vector<std::string> available = plugin_names(directories, kind);
  const std::string hint = hint_for(directories, kind, name, available);
  if (!is_name(name)) {
    throw Error(
        ErrorCode::plugin,
        fmt::format("'{}' is no name of a {} plugin{}: names hold a-z, 0-9, _ and - alone; available: {}", name,
                    to_string(kind), hint, available.empty() ? "none" : fmt::format("{}", fmt::join(available, ", "))));
  }
  throw Error(ErrorCode::plugin,
              fmt::format("there is no {0} plugin '{1}'{2}; available: {3}; searched for {4}{0}_{1}{5} in: {6}; other "
                          "directories are named in [plugins] path or SHARDRUN_PLUGIN_PATH",
                          to_string(kind), name, hint,
                          available.empty() ? "none" : fmt::format("{}", fmt::join(available, ", ")), prefix, suffix,
                          searched.empty() ? "no directory" : fmt::format("{}", fmt::join(searched, ", "))));
}

}  // namespace

std::string label_of(const Candidate& file) {
  return fmt::format("{} plugin '{}' ({})", file.kind, file.name, printable(file.path.string()));
}

std::string label_of(const Plugin& plugin) {
  const Manifest& manifest = plugin.manifest();
  return label_of(Candidate{plugin.path(), std::string(to_string(manifest.kind)), manifest.name});
}

std::optional<Candidate> candidate_of(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() < prefix.size() + suffix.size()) {
    return std::nullopt;
  }
  const std::string stem = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  const std::size_t underscore = stem.find('_');
  if (underscore == std::string::npos || !is_name(stem.substr(underscore + 1))) {
    return std::nullopt;
  }
  return Candidate{file, stem.substr(0, underscore), stem.substr(underscore + 1)};
}

std::vector<Candidate> candidates_in(const std::filesystem::path& directory) {
  std::vector<Candidate> found;
  std::error_code unreadable;
  for (std::filesystem::directory_iterator entry(directory, unreadable), end; !unreadable && entry != end;
       entry.increment(unreadable)) {
    if (std::optional<Candidate> candidate = candidate_of(entry->path())) {
      found.push_back(std::move(*candidate));
    }
  }
  std::ranges::sort(found, {}, &Candidate::path);
  return found;
}

std::vector<std::string> plugin_names(const Directories& directories, PluginKind kind) {
  std::set<std::string> names;
  for (const std::filesystem::path& directory : directories) {
    for (const Candidate& candidate : candidates_in(directory)) {
      if (candidate.kind == to_string(kind)) {
        names.insert(candidate.name);
      }
    }
  }
  return {names.begin(), names.end()};
}

std::filesystem::path find_plugin(const Directories& directories, PluginKind kind, std::string_view name) {
  if (!is_name(name)) {
    throw_missing(directories, kind, name);
  }
  for (const std::filesystem::path& directory : directories) {
    std::filesystem::path file = directory / fmt::format("{}{}_{}{}", prefix, to_string(kind), name, suffix);
    std::error_code ignored;
    if (std::filesystem::symlink_status(file, ignored).type() != std::filesystem::file_type::not_found) {
      return file;
    }
  }
  throw_missing(directories, kind, name);
}

}  // namespace shardrun::plugins
