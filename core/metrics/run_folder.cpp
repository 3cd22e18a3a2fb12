#include "core/metrics/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/stop.h"
#include "core/files/folder.h"

namespace shardrun::metrics {
namespace {

files::FileDescriptor open_lock(const std::filesystem::path& folder) {
  return files::FileDescriptor(::open((folder / lock_name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
}

/// The process of the run that holds the folder now, for people; "" if there is none.
std::string process_at(const std::filesystem::path& folder) {
  const files::FileDescriptor lock = open_lock(folder);
  return lock.is_open() ? process_of(owner_in(lock)) : "";
}

bool is_removed(const files::Folder& folder) {
  struct stat status = {};
  return ::fstat(folder.descriptor().get(), &status) != 0 || status.st_nlink == 0;
}

}  // namespace

std::string owner_in(const files::FileDescriptor& lock) {
  std::array<char, 512> text{};
  const ssize_t bytes = ::pread(lock.get(), text.data(), text.size(), 0);
  return bytes > 0 ? std::string(text.data(), static_cast<std::size_t>(bytes)) : "";
}

std::string process_of(const std::string& owner) {
  return owner.empty() ? "a process that just started" : owner.substr(0, owner.find('\n'));
}

RunFolder::RunFolder(const std::filesystem::path& at, std::filesystem::path path)
    : path_(std::move(path)), folder_(at), lock_(open_lock(folder_.root())) {
  struct stat status = {};
  if (!lock_.is_open() || ::fstat(lock_.get(), &status) != 0) {
    throw files::system_error("open the lock", folder_.root() / lock_name, errno);
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  owner_ = owner_in(lock_);
  std::error_code failed;
  real_path_ = std::filesystem::canonical(path_, failed);
  if (failed) {
    real_path_ = std::filesystem::absolute(path_);
  }
}

bool RunFolder::is_lock(const std::filesystem::path& path) const noexcept {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) {
    // Other errors (EACCES, EIO, ESTALE, ...) do not mean that the lock is gone, and the run holds it open.
    return errno != ENOENT && errno != ENOTDIR;
  }
  return status.st_dev == device_ && status.st_ino == inode_;
}

bool RunFolder::is_owned() const noexcept {
  // The process that held the lock may have been killed, and another run may hold it now.
  return is_lock(root() / lock_name) && owner_in(lock_) == owner_;
}

void RunFolder::require_owned() const {
  if (is_lock(real_path_ / lock_name) && owner_in(lock_) == owner_) {
    return;
  }
  const bool is_kept = is_owned();
  std::string found;
  if (is_removed(folder_)) {
    found = "was removed";
  } else if (is_kept) {
    found = fmt::format("was moved to '{}'", files::shown(root()).native());
  } else if (const std::string holder = process_at(root()); !holder.empty()) {
    found = fmt::format("was taken by another run ({})", holder);
  } else {
    found = fmt::format("lost its lock ({})", lock_name);
  }
  const std::string successor = is_kept ? process_at(real_path_) : "";
  throw Error(ErrorCode::io,
              fmt::format("the output folder '{}' {} while this run wrote to it{}: the run has stopped{}. Leave the "
                          "folder of a live run as it is; start the job again, with another [job] output where two "
                          "runs are to go on at once",
                          files::human_path(path_), found,
                          successor.empty() ? "" : fmt::format(", and another run ({}) has its place", successor),
                          is_kept ? ", and its files are where the folder is now" : ""));
}

RunFolder find_run_folder(const std::filesystem::path& path, const std::string& owner,
                          std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds pause{50};
  // Counts pauses instead of time, because time goes on while this process is suspended.
  for (auto waited = std::chrono::milliseconds::zero();; waited += pause) {
    stop_point();
    std::string found;
    try {
      // Opening the parent folder makes a network file system check again whether this folder exists.
      const files::Folder above(std::filesystem::absolute(path).parent_path());
      RunFolder folder(path, path);
      if (folder.owner() == owner) {
        return folder;
      }
      found = fmt::format("that here is of {}", process_of(folder.owner()));
    } catch (const Error& error) {
      found = error.message();
    }
    if (waited >= patience) {
      throw Error(ErrorCode::io,
                  fmt::format("the output folder '{}' here is not the one that rank 0 writes to ({}), but {}: where "
                              "ranks are on several machines, [job] output must be a folder that all of them share",
                              files::human_path(path), process_of(owner), found));
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace shardrun::metrics
