#pragma once

#include <filesystem>

namespace shardrun::files {

/// Checks that no one else can change the file, since loading it runs it as the user. This concerns the file, its
/// directory, all directories above, and those that links lead to.
///
/// Each belongs to a trusted user (the user, root or the executable's owner), and no one else can write to it.
/// Exceptions:
/// - A group may have write access, by mode or by a POSIX access control list, where it is root's, has no members, or
///   all its members are trusted users. Members are those listed in the group, and those with it as their primary
///   group.
/// - Above the file's own directory others may write where the sticky bit keeps them from renaming files of others
///   (/tmp).
/// Throws Error{plugin} with what is not trusted.
void require_trusted(const std::filesystem::path& file);

/// require_trusted() for a directory alone.
void require_trusted_directory(const std::filesystem::path& directory);

/// require_trusted() for a directory that libraries may be loaded from. If it does not exist, no one else may be able
/// to create it. A link that leads nowhere is not trusted.
void require_trusted_search(const std::filesystem::path& directory);

/// Checks that a folder which will be written to holds no link that another user than this process's or root has put
/// there, itself or in a folder of it: files would be written, or removed, where that user cannot. Throws Error{data}.
void require_no_links_of_others(const std::filesystem::path& folder);

}  // namespace shardrun::files
