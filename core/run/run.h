#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/checkpoint/open_checkpoint.h"
#include "core/files/folder.h"
#include "core/job/job.h"
#include "core/metrics/locked_run_folder.h"
#include "core/metrics/summary.h"
#include "core/screen/progress.h"

namespace shardrun::run {

/// Output and stop requests of a run.
struct RunSettings {
  screen::ProgressSink progress;
  /// The signal that asked to stop, or 0. Any thread calls it at any time, so it does not wait and calls no device.
  std::function<int()> stop_signal;
  bool profile = false;
  bool replaces = false;  ///< whether the run may take the place of one of a different job
  /// Registers a function to call with the first signal that asks to stop, at once, on another thread. An empty
  /// function unregisters. May be empty itself.
  std::function<void(std::function<void(int)>)> on_stop;
  metrics::RunOrigin origin;  ///< everything except the end time
  /// When the run has to end, by [job] time_limit.
  std::optional<std::chrono::system_clock::time_point> ends_by = {};
  std::filesystem::path output;  ///< [job] output with the placeholders filled in by this process
};

/// A run in its output folder, from the lock to the summary. Belongs to the process that reports the job's result: the
/// only one, the launcher, or rank 0 if another launcher started the ranks.
class Run {
 public:
  /// Opens and locks the folder. `settings` outlives this. Throws as metrics::LockedRunFolder.
  Run(const job::Job& job, const RunSettings& settings);

  /// Removes an older run's files and writes job.ini. Returns the message about the older run, or "" if there was none.
  /// `resumed`: the checkpoint that the run goes on from; null: none. If it is of the run in this folder, its metrics
  /// up to there stay. Throws Error{io}, also if another run uses [checkpoint] folder.
  [[nodiscard]] std::string begin(const checkpoint::OpenCheckpoint* resumed);

  /// For ranks that begin again: removes their files of steps after `resumed`, and writes job.ini. REQUIRES: begin()
  /// was called, and no rank runs. Throws Error{io}.
  void begin_again(const job::Job& job, const checkpoint::OpenCheckpoint* resumed);
  /// Moves logs and flight records to a new folder of attempts_path(), and returns it. Throws Error{io}.
  [[nodiscard]] std::filesystem::path keep_record() const;

  /// The job; its output is the open folder.
  [[nodiscard]] const job::Job& job() const noexcept { return job_; }
  [[nodiscard]] const metrics::LockedRunFolder& locked_folder() const noexcept { return locked_folder_; }

  /// Completes and writes the summary. If it cannot be written, or the folder is no longer the run's, the summary fails
  /// for this reason, unless it has already failed. Throws nothing.
  void write_summary(metrics::Summary& summary) noexcept;
  /// Completes the summary of an attempt, and writes it to the folder of its record. Throws Error{io}.
  void write_record(const std::filesystem::path& folder, metrics::Summary summary) const;
  /// As write_summary(), after all ranks have ended; also joins their traces.
  void end(metrics::Summary& summary);

 private:
  void write_job() const;
  /// Removes the checkpoints that the run replaces.
  void replace_checkpoints();
  void complete(metrics::Summary& summary) const;

  const RunSettings& settings_;
  metrics::LockedRunFolder locked_folder_;
  std::optional<files::Folder> checkpoints_;  ///< the folder of checkpoints, locked
  job::Job job_;
};

/// The summary of a job that was asked to stop before its first step. `when`: "before anything was started".
[[nodiscard]] metrics::Summary stopped_early(const job::Job& job, int signal, std::string_view when);

/// The summary of a job that was asked to stop during its preparation; nothing if it was not.
[[nodiscard]] std::optional<metrics::Summary> stopped_before_start(const job::Job& job, const RunSettings& settings);

}  // namespace shardrun::run
