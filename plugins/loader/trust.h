#pragma once

#include <filesystem>

namespace shardrun::plugins {

/// Loading a file runs it as the user, so it must be out of others' reach: the file, its directory, all directories
/// above, and those that links lead to belong to a trusted user (the user, root or the executable's owner) and are
/// writable by nobody else. A group may write, by mode or by a POSIX access control list, that is root's, or whose
/// members (listed in the group, or with it as their primary group) are all trusted users; one without members may.
/// Above the file's own directory others may write where the sticky bit keeps them from renaming what is not theirs
/// (/tmp). Throws Error{plugin} that says what is not trusted.
void require_trusted(const std::filesystem::path& file);

/// The same of a directory alone.
void require_trusted_directory(const std::filesystem::path& directory);

/// The same of a directory that libraries may be loaded from. Where it does not exist, nobody else may create it. A
/// link that leads nowhere is not trusted.
void require_trusted_search(const std::filesystem::path& directory);

}  // namespace shardrun::plugins
