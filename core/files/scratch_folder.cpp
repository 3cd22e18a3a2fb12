#include "core/files/scratch_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"

namespace shardrun::files {
namespace {

constexpr std::string_view random_part = "XXXXXX";

FileDescriptor open_folder(const std::filesystem::path& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

bool is_locked(const FileDescriptor& folder) { return ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0; }

/// Removes folders that killed processes have left. These are folders of this user without a lock. Ignores errors.
void remove_dead(const std::filesystem::path& above, const std::string& prefix) {
  std::error_code failed;
  std::filesystem::directory_iterator each(above, failed);
  for (; !failed && each != std::filesystem::directory_iterator(); each.increment(failed)) {
    const std::string name = each->path().filename().string();
    if (!name.starts_with(prefix) || name.size() != prefix.size() + random_part.size()) {
      continue;
    }
    const FileDescriptor folder = open_folder(each->path());
    struct stat status = {};
    if (folder.is_open() && ::fstat(folder.get(), &status) == 0 && status.st_uid == ::geteuid() && is_locked(folder)) {
      std::error_code ignored;
      std::filesystem::remove_all(each->path(), ignored);
    }
  }
}

}  // namespace

ScratchFolder::ScratchFolder(std::string_view name, std::string_view what) {
  std::error_code failed;
  const std::filesystem::path above = std::filesystem::temp_directory_path(failed);
  // Machines can share the folder without seeing each other's locks, so names contain the host.
  const std::string prefix = fmt::format("{}-{}-", name, host_name());
  if (!failed) {
    remove_dead(above, prefix);
  }
  while (!lock_.is_open()) {
    std::string made = (above / (prefix + std::string(random_part))).string();
    if (failed || ::mkdtemp(made.data()) == nullptr) {
      const char* const given = std::getenv("TMPDIR");
      throw Error(ErrorCode::usage, fmt::format("no folder for {} can be made in '{}': {}: let TMPDIR name a folder "
                                                "that may be written to",
                                                what, given != nullptr ? given : "/tmp",
                                                failed ? failed.message() : std::strerror(errno)));
    }
    path_ = made;
    FileDescriptor folder = open_folder(path_);
    if (!folder.is_open() && errno != ENOENT) {
      throw system_error("open", path_, errno);
    }
    // Before the folder is locked, another process can remove it as a dead process's folder; then a new one is made.
    const bool is_taken = !folder.is_open() || (!is_locked(folder) && errno == EWOULDBLOCK);
    struct stat status = {};
    if (!is_taken && ::fstat(folder.get(), &status) == 0 && status.st_nlink > 0) {
      lock_ = std::move(folder);
    }
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace shardrun::files
