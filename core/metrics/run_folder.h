#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "core/files/descriptor.h"
#include "core/files/folder.h"

namespace shardrun::metrics {

/// The output folder of a live run, held open by one of its processes. A run writes below `root()`: whoever moves the
/// folder takes its files along, and no file gets into another folder that has its place.
class RunFolder {
 public:
  /// Opens the folder at `at`, in which the run has its lock. `path`: where people know it; from then on it must stay
  /// where that leads. Throws Error{io}.
  RunFolder(const std::filesystem::path& at, std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const std::filesystem::path& root() const noexcept { return folder_.root(); }
  /// What the run has written into its lock, as no other run does.
  [[nodiscard]] const std::string& owner() const noexcept { return owner_; }

  /// Whether the lock in the folder is this run's: then nobody else writes here, wherever the folder is.
  [[nodiscard]] bool is_owned() const noexcept;
  /// Throws Error{io} where it is not, and where the folder is no longer at its path; says what became of it. Two
  /// system calls: for each write that counts.
  void require_owned() const;

 private:
  /// Whether this run's lock is there, or may be: false only where it is known not to be.
  [[nodiscard]] bool is_lock(const std::filesystem::path& path) const noexcept;

  std::filesystem::path path_;
  std::filesystem::path real_path_;  ///< without links, which may be pointed elsewhere
  files::Folder folder_;
  files::FileDescriptor lock_;
  dev_t device_ = 0;  ///< of the lock, as inode_
  ino_t inode_ = 0;
  std::string owner_;
};

/// The folder of a run whose first rank is on another machine or has not told more than `owner`. Waits for it to appear
/// there, since network file systems take their time. Throws Error{io} where it does not, and Stopped at a stop or an
/// abort.
[[nodiscard]] RunFolder find_run_folder(const std::filesystem::path& path, const std::string& owner,
                                        std::chrono::milliseconds patience = std::chrono::seconds(20));

/// The name of the lock in a run's folder.
inline constexpr const char* lock_name = ".lock";

/// What the holder of an open lock has written into it; "" where it has not yet.
[[nodiscard]] std::string owner_in(const files::FileDescriptor& lock);
/// The first line of that, for people: "process 4711 on host".
[[nodiscard]] std::string process_of(const std::string& owner);

}  // namespace shardrun::metrics
