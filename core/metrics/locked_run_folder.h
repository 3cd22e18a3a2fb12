#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>

#include "core/files/descriptor.h"
#include "core/files/folder.h"
#include "core/metrics/run_files.h"
#include "core/metrics/run_folder.h"

namespace shardrun::metrics {

/// Whose result file is in the folder when a run ends.
enum class Saved {
  none,     ///< there is none
  earlier,  ///< it was there when the run began
  fresh,    ///< this run has written it completely
};

[[nodiscard]] const char* to_string(Saved saved) noexcept;

/// The output folder of a run, locked against all other runs while this object lives. One process of a run holds it.
/// The system releases the lock when that process ends, however it ends. The folder itself is locked, so that removing
/// a lock file lets no other run in. The file `.lock` in it is locked as well, for file systems that cannot lock
/// folders. The file stays; its mere existence locks nothing.
class LockedRunFolder {
 public:
  /// Creates the folder, its parents, and `log` in it. Throws Error{job} if another run holds the folder, and names
  /// that run's process; Error{data} if no folder there can be written to; Error{io} if the system refuses otherwise.
  explicit LockedRunFolder(std::filesystem::path output);

  /// The path for people. Files are written below `root()`.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return output_; }
  [[nodiscard]] const std::filesystem::path& root() const noexcept { return folder_.root(); }
  [[nodiscard]] const RunFolder& folder() const noexcept { return folder_; }
  /// The descriptor of the open folder.
  [[nodiscard]] int descriptor() const noexcept { return locked_.descriptor().get(); }

  /// What has happened to a result file (`weights.safetensors` or `state.safetensors`) since construction.
  [[nodiscard]] Saved saved(const std::filesystem::path& name) const;

  /// Removes the files of the earlier run, except for its weights and its last state, which new ones replace. Before
  /// that, all its files get second names in earlier_path(), if keeps_earlier(); what is kept there is removed if
  /// `kept` keeps nothing. Files with other names are kept; if no run has held the folder before, all files are kept.
  /// Called once, before the run writes. Returns a message for people, or "" if there was no run. Throws Error{io}.
  std::string remove_older_run(const Kept& kept = {}) const;

  /// Removes the run that is kept in earlier_path(), if there is one. Ignores errors.
  void remove_earlier_run() const noexcept;

  /// Removes the files that this run has written so far, except for those that remove_older_run() keeps, because its
  /// ranks begin again. Throws Error{io}.
  void remove_files(const Kept& kept) const;

  /// Removes temporary files that killed processes have left here. Call it when no process of the run is writing.
  /// Ignores errors.
  void remove_unfinished() const noexcept;

 private:
  std::filesystem::path output_;
  files::Folder locked_;
  bool was_of_a_run_;  ///< a run held the folder before this one
  files::FileDescriptor lock_;
  RunFolder folder_;
  std::map<std::string, ino_t> older_;  ///< results that were here before, with their inodes
};

/// Whether a run holds the folder now. Can be false although a run does, where the file system cannot lock, or does not
/// share locks between machines.
[[nodiscard]] bool is_held(const std::filesystem::path& output);

/// The destructor removes the temporary files of killed ranks, after all ranks have ended, however the job ended.
class Leftovers {
 public:
  explicit Leftovers(const LockedRunFolder& folder) : folder_(folder) {}
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;
  ~Leftovers() { folder_.remove_unfinished(); }

 private:
  const LockedRunFolder& folder_;
};

}  // namespace shardrun::metrics
