#pragma once

#include <filesystem>

namespace shardrun::files {

/// Checks that no one else can change the file, because loading it runs it with the user's rights. The check covers the
/// file, its directory, all directories above, and those to which links lead.
///
/// Each must belong to a trusted user (the user, root or the executable's owner), and no one else may be able to write
/// to it. Exceptions:
/// - A group may have write access, by mode or by a POSIX access control list, if it is root's, has no members, or all
/// its
///   members are trusted users. Members are those listed in the group, and those with it as their primary group.
/// - Above the file's own directory others may write if the sticky bit prevents them from renaming files of others
/// (/tmp).
/// Throws Error{plugin}, which says what is not trusted.
void require_trusted(const std::filesystem::path& file);

/// require_trusted() for a directory alone.
void require_trusted_directory(const std::filesystem::path& directory);

/// require_trusted() for a directory from which libraries may be loaded. If it does not exist, no one else may be able
/// to create it. A link that leads nowhere is not trusted.
void require_trusted_search(const std::filesystem::path& directory);

/// Checks that a folder which will be written to contains no link, and is no link, that another user than this
/// process's or root has made: files would be written, or removed, where that user cannot. Throws Error{data}.
void require_no_links_of_others(const std::filesystem::path& folder);

}  // namespace shardrun::files
