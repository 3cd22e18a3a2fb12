#pragma once

#include <filesystem>

#include "core/files/descriptor.h"

namespace shardrun::metrics {

// Where the parts of a run lie in its output folder.

[[nodiscard]] std::filesystem::path metrics_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path summary_path(const std::filesystem::path& output);
[[nodiscard]] std::filesystem::path log_path(const std::filesystem::path& output, int rank);

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

  /// Removes the metrics, summary and logs of the run that was here before; whatever else lies here stays, checkpoints
  /// and what is not ours. A run that starts anew calls it once before it writes; one that goes on does not. Throws
  /// Error{io}.
  void remove_older_run() const;

 private:
  std::filesystem::path output_;
  files::FileDescriptor lock_;
};

}  // namespace shardrun::metrics
