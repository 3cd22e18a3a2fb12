#pragma once

#include <shardrun/plugin.h>

#include <filesystem>

namespace shardrun::plugins {

/// The manifest as the file holds it, not yet judged: none of the plugin's code has run.
/// Throws Error{plugin} unless the file is a plugin in form: a shared library with both symbols, which loads the
/// libraries that it needs, and that these need, from folders that are trusted as its own is.
[[nodiscard]] sr_manifest read_manifest(const std::filesystem::path& file);

using OpenFunction = decltype(&shardrun_open_v1);

/// Loads the library for good and returns its way in. Throws Error{plugin} with the dynamic linker's words.
[[nodiscard]] OpenFunction load_library(const std::filesystem::path& file);

}  // namespace shardrun::plugins
