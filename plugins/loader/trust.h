#pragma once

#include <filesystem>

namespace shardrun::plugins {

/// Loading a file runs it as the user, so it must be out of others' reach: the file, its directory and, where
/// the path leads over links, those that it leads to belong to the user, root or the executable's owner and are
/// not writable by everyone. Throws Error{plugin} that says which is not.
void require_trusted(const std::filesystem::path& file);

/// The same of a directory alone.
void require_trusted_directory(const std::filesystem::path& directory);

}  // namespace shardrun::plugins
