#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "core/files/descriptor.h"
#include "core/files/folder.h"
#include "core/metrics/run_folder.h"

namespace shardrun::metrics {

// Where the parts of a run lie in its output folder.

[[nodiscard]] std::filesystem::path metrics_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path summary_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path log_path(const std::filesystem::path& output, int rank);
[[nodiscard]] std::filesystem::path job_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path sample_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path weights_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path state_path(const std::filesystem::path& output);
/// The file of a state that is saved during a run, after this many steps: state-000100.safetensors.
[[nodiscard]] std::filesystem::path state_path(const std::filesystem::path& output, std::int64_t step);
/// Of all ranks; and of one, in a folder of their own.
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& output, int rank);

/// Of the ranks' flight records.
[[nodiscard]] std::filesystem::path flight_folder(const std::filesystem::path& output);

/// The name of this machine.
[[nodiscard]] std::string host_name();

/// What a run that goes on from an earlier one in its own folder leaves of it.
struct Kept {
  std::filesystem::path file;  ///< that it goes on from
  std::int64_t step = -1;      ///< states saved under way up to here are its past
};

/// Whether a run has held the folder once.
[[nodiscard]] bool is_of_a_run(const std::filesystem::path& output);

/// A file in the folder that has the name of a run's result (job.ini, weights.safetensors, state-000100.safetensors,
/// …), other than `except`, although no run has ever held the folder; "" where there is none.
[[nodiscard]] std::filesystem::path foreign_result(const std::filesystem::path& output,
                                                   const std::filesystem::path& except = {});

/// Bytes on disk of the older run's files that a run in this folder removes before it writes.
[[nodiscard]] std::uint64_t bytes_to_remove(const std::filesystem::path& output, const Kept& kept = {});

/// Whether a run that writes to `output` may replace or remove `file`: it lies there, by its name or behind links, and
/// has the name of a file that runs write.
[[nodiscard]] bool is_written_by_runs(const std::filesystem::path& file, const std::filesystem::path& output);

/// Whether the file has the name of a state, at the end or saved under way.
[[nodiscard]] bool has_name_of_state(const std::filesystem::path& file);

/// Which result file is in the folder when a run ends.
enum class Saved {
  none,     ///< there is no such file
  earlier,  ///< that which was there when the run began
  fresh,    ///< this run's, whole
};

[[nodiscard]] const char* to_string(Saved saved) noexcept;

/// The output folder of a run, held against every other run for as long as this lives. One process of a run holds it;
/// the system lets go of it when that process ends, in whatever way. The folder itself is locked, so that a lock that
/// is removed lets no other run in, and so is the file `.lock` in it, for file systems that cannot lock folders. The
/// file stays: it is the lock's place, not the lock.
class RunDirectory {
 public:
  /// Creates the folder, those above it and `log` in it. Throws Error{io}: where the system refuses, or where another
  /// run holds the folder, naming its process.
  explicit RunDirectory(std::filesystem::path output);

  /// Where people know it. Files are written by way of `root()`.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return output_; }
  [[nodiscard]] const std::filesystem::path& root() const noexcept { return folder_.root(); }
  [[nodiscard]] const RunFolder& folder() const noexcept { return folder_; }
  /// That of the open folder.
  [[nodiscard]] int descriptor() const noexcept { return locked_.descriptor().get(); }

  /// What became of a result, `weights.safetensors` or `state.safetensors`, since this was made.
  [[nodiscard]] Saved saved(const std::filesystem::path& name) const;

  /// Removes what the run that was here before has left, except its weights and its last state, which the next ones
  /// replace. Other files stay; where no run has held the folder before this one, all files stay. A run calls it once
  /// before it writes. Returns what to tell the person, or "" where there was no run. Throws Error{io}.
  std::string remove_older_run(const Kept& kept = {}) const;

  /// Removes what processes that were killed were about to write here: temporary files. For a moment at which no
  /// process of the run writes. As far as the system lets it.
  void remove_unfinished() const noexcept;

 private:
  std::filesystem::path output_;
  files::Folder locked_;
  bool was_of_a_run_;  ///< before this held it
  files::FileDescriptor lock_;
  RunFolder folder_;
  std::map<std::string, ino_t> older_;  ///< results that were here, by name
};

/// What killed ranks were about to write goes at the end of this, when all ranks have, however the job ended.
class Leftovers {
 public:
  explicit Leftovers(const RunDirectory& directory) : directory_(directory) {}
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;
  ~Leftovers() { directory_.remove_unfinished(); }

 private:
  const RunDirectory& directory_;
};

}  // namespace shardrun::metrics
