#pragma once

#include <cstdint>
#include <filesystem>

#include "core/files/descriptor.h"

namespace shardrun::metrics {

// Where the parts of a run lie in its output folder.

[[nodiscard]] std::filesystem::path metrics_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path summary_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path log_path(const std::filesystem::path& output, int rank);
[[nodiscard]] std::filesystem::path job_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path sample_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path weights_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path state_path(const std::filesystem::path& output);
/// Of all ranks; and of one, in a folder of their own.
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path trace_path(const std::filesystem::path& output, int rank);

/// Of the ranks' flight records.
[[nodiscard]] std::filesystem::path flight_folder(const std::filesystem::path& output);

/// What one rank has of a file, beside it, until all parts are joined.
[[nodiscard]] std::filesystem::path part_path(const std::filesystem::path& path, std::int64_t rank);

/// Whether a run has held the folder once.
[[nodiscard]] bool is_of_a_run(const std::filesystem::path& output);

/// The output folder of a run, held against every other run for as long as this lives. One process of a run holds it;
/// the system lets go of it when that process ends, in whatever way. The file `.lock` stays: it is the lock's place,
/// not the lock.
class RunDirectory {
 public:
  /// Creates the folder, those above it and `log` in it. Throws Error{io}: where the system refuses, or where another
  /// run holds the folder, naming its process.
  explicit RunDirectory(std::filesystem::path output);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return output_; }

  /// Removes the metrics, summary, traces, flight records and logs of the run that was here before, and what it left
  /// unfinished; whatever else lies here stays, checkpoints and what is not ours. A run that starts anew calls it once
  /// before it writes; one that goes on does not. Throws Error{io}.
  void remove_older_run() const;

  /// Removes what processes that were killed were about to write here: temporary files, and parts that were not joined.
  /// For a moment at which no process of the run writes. As far as the system lets it.
  void remove_unfinished() const noexcept;

 private:
  std::filesystem::path output_;
  files::FileDescriptor lock_;
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
