#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace shardrun::files {

/// What this user may still write, and what sets that limit.
struct DiskRoom {
  std::uint64_t bytes = 0;
  std::string of;  ///< "the file system of '/data'", "the disk quota of user 1000 there"
};

/// Of the file system that `path` is in, or would be in: what is free for this user, or what the user's quota leaves
/// if that is less. The quotas of groups and projects are not looked at. Nothing where the system does not say.
[[nodiscard]] std::optional<DiskRoom> disk_room(const std::filesystem::path& path);

/// The most bytes that this process may give a file (ulimit -f); nothing where no limit is set.
[[nodiscard]] std::optional<std::uint64_t> file_size_limit();

}  // namespace shardrun::files
