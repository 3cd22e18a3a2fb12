#pragma once

#include <shardrun/plugin.h>

#include <filesystem>

namespace shardrun::plugins {

/// Reads the manifest from the file, unchecked, without running the plugin's code. Throws Error{plugin} unless the file
/// has the form of a plugin: a shared library with both symbols. All libraries that it needs, directly or indirectly,
/// must come from folders that are trusted like its own.
[[nodiscard]] sr_manifest read_manifest(const std::filesystem::path& file);

using OpenFunction = decltype(&shardrun_open_v1);

/// Loads the library, which is never unloaded, and returns its open function. Throws Error{plugin} with the dynamic
/// linker's text.
[[nodiscard]] OpenFunction load_library(const std::filesystem::path& file);

}  // namespace shardrun::plugins
