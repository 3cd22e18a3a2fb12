#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace shardrun::files {

/// How much this user may still write, and the limit that says so.
struct DiskRoom {
  std::uint64_t bytes = 0;
  std::string of;          ///< "the file system of '/data'", "the disk quota of user 1000 there"
  std::uint64_t disk = 0;  ///< the file system's number on this machine
};

/// The room on the file system that `path` is or would be in: this user's free room, or less if the quota leaves less.
/// Quotas of groups and projects are not checked. Nothing if the system does not say.
[[nodiscard]] std::optional<DiskRoom> disk_room(const std::filesystem::path& path);

/// Why this user cannot create files in the folder, or cannot make it where it is missing: the path in the way, and the
/// system's reason. "" if nothing is in the way that can be seen without writing.
[[nodiscard]] std::string why_unwritable(const std::filesystem::path& folder);

/// The largest file that this process may write (ulimit -f); nothing if there is no limit.
[[nodiscard]] std::optional<std::uint64_t> file_size_limit();

}  // namespace shardrun::files
