#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace shardrun::files {

/// How many bytes this user can still write, and which limit determines that.
struct DiskRoom {
  std::uint64_t bytes = 0;
  std::string of;          ///< the limit: "the file system of '/data'", "the disk quota of user 1000 at '/data'"
  std::uint64_t disk = 0;  ///< the number that identifies the file system on this machine
};

/// The room on the file system to which `path` belongs or would belong. It is the free space for this user, or the rest
/// of the user's quota if that is less. Quotas of groups and projects are not checked. Returns nothing if the system
/// does not tell the free space.
[[nodiscard]] std::optional<DiskRoom> disk_room(const std::filesystem::path& path);

/// Says why this user cannot create files in the folder, or create the folder if it is missing. The text has the path
/// that prevents it and the system's message. It is "" if no reason is visible without writing.
[[nodiscard]] std::string why_unwritable(const std::filesystem::path& folder);

/// The largest file that this process can write (ulimit -f), in bytes; nothing if there is no limit.
[[nodiscard]] std::optional<std::uint64_t> file_size_limit();

}  // namespace shardrun::files
