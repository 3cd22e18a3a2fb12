#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "core/files/descriptor.h"
#include "core/files/folder.h"
#include "core/metrics/run_folder.h"

namespace shardrun::metrics {

// Paths of the parts of a run in its output folder.

[[nodiscard]] std::filesystem::path metrics_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path summary_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path log_path(const std::filesystem::path& output, int rank);
[[nodiscard]] std::filesystem::path job_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path sample_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path weights_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path state_path(const std::filesystem::path& output);
/// The file of a state that is saved during a run, after this many steps: state-000100.safetensors.
[[nodiscard]] std::filesystem::path state_path(const std::filesystem::path& output, std::int64_t step);
/// The joined trace; and one rank's, in a folder below.
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& output, int rank);

/// The folder of the ranks' flight records.
[[nodiscard]] std::filesystem::path flight_folder(const std::filesystem::path& output);

/// The name of this machine.
[[nodiscard]] std::string host_name();

/// Files of an earlier run that stay in the folder of a run that starts from the earlier run's state.
struct Kept {
  std::filesystem::path file;  ///< the state that the new run starts from
  std::int64_t step = -1;      ///< saved states up to this step are kept
};

/// Whether a run has ever held the folder.
[[nodiscard]] bool is_of_a_run(const std::filesystem::path& output);

/// A file in the folder, other than `except`, that has the name of a run's result (job.ini, weights.safetensors,
/// state-000100.safetensors, …) although no run has ever held the folder; "" if there is none.
[[nodiscard]] std::filesystem::path foreign_result(const std::filesystem::path& output,
                                                   const std::filesystem::path& except = {});

/// Bytes on disk of the earlier run's files that a new run removes before it writes.
[[nodiscard]] std::uint64_t bytes_to_remove(const std::filesystem::path& output, const Kept& kept = {});

/// Whether a run that writes to `output` may replace or remove `file`. That is so if the file lies there, directly or
/// behind links, and has the name of a file that runs write.
[[nodiscard]] bool is_written_by_runs(const std::filesystem::path& file, const std::filesystem::path& output);

/// Whether the file has the name of a final or intermediate state.
[[nodiscard]] bool has_name_of_state(const std::filesystem::path& file);

/// Whose result file is in the folder when a run ends.
enum class Saved {
  none,     ///< there is none
  earlier,  ///< it was there when the run began
  fresh,    ///< it is complete and this run's
};

[[nodiscard]] const char* to_string(Saved saved) noexcept;

/// The output folder of a run, locked against every other run while this lives. One process of a run holds it. The
/// system releases the lock when that process ends, however it ends. The folder itself is locked, so that removing a
/// lock file lets no other run in. The file `.lock` in it is locked as well, for file systems that cannot lock folders.
/// The file stays; by itself it locks nothing.
class RunDirectory {
 public:
  /// Creates the folder, those above it, and `log` in it. Throws Error{io} if the system refuses, or if another run
  /// holds the folder, naming its process.
  explicit RunDirectory(std::filesystem::path output);

  /// The path for people. Files are written below `root()`.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return output_; }
  [[nodiscard]] const std::filesystem::path& root() const noexcept { return folder_.root(); }
  [[nodiscard]] const RunFolder& folder() const noexcept { return folder_; }
  /// The descriptor of the open folder.
  [[nodiscard]] int descriptor() const noexcept { return locked_.descriptor().get(); }

  /// The state of a result (`weights.safetensors` or `state.safetensors`) since construction.
  [[nodiscard]] Saved saved(const std::filesystem::path& name) const;

  /// Removes the files of the earlier run, except its weights and its last state, which new ones replace. Files with
  /// other names stay; if no run has held the folder before, all files stay. Called once, before the run writes.
  /// Returns the message for the person, or "" if there was no run. Throws Error{io}.
  std::string remove_older_run(const Kept& kept = {}) const;

  /// Removes temporary files that killed processes have left here. Call it when no process of the run writes. Ignores
  /// errors.
  void remove_unfinished() const noexcept;

 private:
  std::filesystem::path output_;
  files::Folder locked_;
  bool was_of_a_run_;  ///< before this held it
  files::FileDescriptor lock_;
  RunFolder folder_;
  std::map<std::string, ino_t> older_;  ///< results that were here before, by name
};

/// Removes the temporary files of killed ranks in its destructor, after all ranks have ended, however the job ended.
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
