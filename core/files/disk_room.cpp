#include "core/files/disk_room.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/quota.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/files/descriptor.h"

// Defined for headers older than Linux 5.14. The number is the same on every architecture.
#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
#endif

namespace shardrun::files {
namespace {

std::filesystem::path nearest_that_is(std::filesystem::path path) {
  std::error_code none;
  path = std::filesystem::absolute(path);
  while (!std::filesystem::is_directory(path, none) && path.has_relative_path()) {
    path = path.parent_path();
  }
  return path;
}

/// How many bytes the quota of this user still allows on the file system of an open folder;
/// nothing if there is no quota.
std::optional<std::uint64_t> quota_room(const FileDescriptor& folder) {
  if_dqblk quota = {};
  if (::syscall(SYS_quotactl_fd, folder.get(), QCMD(Q_GETQUOTA, USRQUOTA), ::geteuid(), &quota) != 0 ||
      (quota.dqb_valid & QIF_BLIMITS) == 0 || (quota.dqb_valid & QIF_SPACE) == 0 || quota.dqb_bhardlimit == 0) {
    return std::nullopt;
  }
  const std::uint64_t limit = quota.dqb_bhardlimit * QIF_DQBLKSIZE;
  return limit - std::min<std::uint64_t>(limit, quota.dqb_curspace);
}

}  // namespace

std::optional<DiskRoom> disk_room(const std::filesystem::path& path) {
  const std::filesystem::path folder = nearest_that_is(path);
  const FileDescriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct statvfs status = {};
  struct stat of_folder = {};
  if (!open.is_open() || ::fstatvfs(open.get(), &status) != 0 || status.f_blocks == 0 ||
      ::fstat(open.get(), &of_folder) != 0) {
    return std::nullopt;
  }
  const std::uint64_t blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  DiskRoom room{.bytes = blocks * status.f_frsize, .of = fmt::format("the file system of '{}'", folder.native())};
  if (const std::optional<std::uint64_t> quota = quota_room(open); quota && *quota < room.bytes) {
    room = {.bytes = *quota, .of = fmt::format("the disk quota of user {} at '{}'", ::geteuid(), folder.native())};
  }
  room.disk = of_folder.st_dev;
  return room;
}

std::string why_unwritable(const std::filesystem::path& folder) {
  std::filesystem::path there = std::filesystem::absolute(folder);
  struct stat status = {};
  while (::stat(there.c_str(), &status) != 0) {
    const int error = errno;
    if (::lstat(there.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
      return fmt::format("'{}' is a link that leads nowhere: {}", there.native(), std::strerror(error));
    }
    if (error != ENOENT || !there.has_relative_path()) {
      return fmt::format("'{}': {}", there.native(), std::strerror(error));
    }
    there = there.parent_path();
  }
  if (!S_ISDIR(status.st_mode)) {
    return fmt::format("'{}' is not a folder", there.native());
  }
  return ::access(there.c_str(), W_OK | X_OK) == 0 ? "" : fmt::format("'{}': {}", there.native(), std::strerror(errno));
}

std::optional<std::uint64_t> file_size_limit() {
  rlimit limit = {};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ? std::nullopt
                                                                                   : std::optional(limit.rlim_cur);
}

}  // namespace shardrun::files
