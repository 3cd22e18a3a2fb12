#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "core/files/descriptor.h"
#include "core/files/folder.h"

namespace shardrun::metrics {

/// The output folder of a live run, held open by one of its processes. A run writes below `root()`. If the folder is
/// moved, its files move with it; no file is written to another folder at its old path.
class RunFolder {
 public:
  /// Opens the folder at `at`, which contains the run's lock. `path`: the folder's path for people; it must keep
  /// leading to this folder. Throws Error{io}.
  RunFolder(const std::filesystem::path& at, std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const std::filesystem::path& root() const noexcept { return folder_.root(); }
  /// The content of the run's lock, which is unique to the run.
  [[nodiscard]] const std::string& owner() const noexcept { return owner_; }

  /// Whether the lock in the folder is this run's. If so, nobody else writes here, wherever the folder is now.
  [[nodiscard]] bool is_owned() const noexcept;
  /// Throws Error{io} if the lock is not this run's, or if the folder is no longer at its path; then the message says
  /// where it is. Takes two system calls. Called before important writes.
  void require_owned() const;

 private:
  /// Whether this run's lock is at `path`. An error other than a missing file counts as yes.
  [[nodiscard]] bool is_lock(const std::filesystem::path& path) const noexcept;

  std::filesystem::path path_;
  std::filesystem::path real_path_;  ///< with links resolved, because links may change
  files::Folder folder_;
  files::FileDescriptor lock_;
  dev_t device_ = 0;  ///< of the lock, like inode_
  ino_t inode_ = 0;
  std::string owner_;
};

/// Finds a run's folder by its `owner`, for a rank on another machine than the first rank's. Waits for the lock to
/// appear, because network file systems take time. Throws Error{io} if it does not appear, and Stopped after a request
/// to stop or an abort.
[[nodiscard]] RunFolder find_run_folder(const std::filesystem::path& path, const std::string& owner,
                                        std::chrono::milliseconds patience = std::chrono::seconds(20));

/// The name of the lock in a run's folder.
inline constexpr const char* lock_name = ".lock";

/// The text that the holder of an open lock wrote into it; "" if it has not written yet.
[[nodiscard]] std::string owner_in(const files::FileDescriptor& lock);
/// The text's first line, for people: "process 4711 on host".
[[nodiscard]] std::string process_of(const std::string& owner);

}  // namespace shardrun::metrics
