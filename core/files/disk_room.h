#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace shardrun::files {

/// How much this user may still write, and which limit decides that.
struct DiskRoom {
  std::uint64_t bytes = 0;
  std::string of;          ///< the limit: "the file system of '/data'", "the disk quota of user 1000 there"
  std::uint64_t disk = 0;  ///< the file system's number on this machine
};

/// The room on the file system to which `path` belongs or would belong: the space that this user may use, or less if
/// the user's quota leaves less. Quotas of groups and projects are not checked. Nothing if the system does not say.
[[nodiscard]] std::optional<DiskRoom> disk_room(const std::filesystem::path& path);

/// Why this user cannot create files in the folder, or cannot create the folder if it is missing: the path that
/// prevents it, and the system's reason. "" if nothing that can be seen without writing prevents it.
[[nodiscard]] std::string why_unwritable(const std::filesystem::path& folder);

/// The largest file that this process may write (ulimit -f), in bytes; nothing if there is no limit.
[[nodiscard]] std::optional<std::uint64_t> file_size_limit();

}  // namespace shardrun::files
