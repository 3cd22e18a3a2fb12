#pragma once

#include <filesystem>

namespace shardrun::files {

/// Checks that no other user can change the file, because loading it runs its code with this user's rights. The check
/// covers the file, its directory, all directories above, and the targets of links among them. Throws Error{plugin}.
///
/// Each must belong to a trusted user (this user, root or the executable's owner), and only trusted users may write to
/// it. Exceptions:
/// - A group may have write access, by mode or by a POSIX access control list, if it is root's group, has no members,
///   or has only trusted users as members. Members are those in the group's list and users whose primary group it is.
///   A group that the database of groups lacks is trusted only if it is this process's own, by the same rule.
/// - In directories above the file's own, others may write if the sticky bit keeps them from renaming files of other
///   users, as in /tmp. Such a directory may also belong to a user outside of this user namespace.
void require_trusted(const std::filesystem::path& file);

/// Like require_trusted(), for a directory.
void require_trusted_directory(const std::filesystem::path& directory);

/// Like require_trusted(), for a directory from which libraries may be loaded. If it does not exist, no other user may
/// be able to create it. A broken link is not trusted.
void require_trusted_search(const std::filesystem::path& directory);

/// Checks a folder that will be written to. The folder and its direct subfolders must contain no link that a user other
/// than this user or root has made. Such a link could lead writes or removals to other places. Throws Error{data}.
void require_no_links_of_others(const std::filesystem::path& folder);

}  // namespace shardrun::files
