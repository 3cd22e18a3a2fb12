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
#include "core/metrics/exposition.h"
#include "core/metrics/locked_run_folder.h"
#include "core/metrics/summary.h"
#include "core/screen/progress.h"

namespace shardrun::run {

/// Settings of a run that are not in the job: output and stop requests.
struct RunSettings {
  screen::ProgressSink progress;
  /// Returns the signal that asked to stop, or 0. It is called on any thread at any time, so it must not wait or call a
  /// device.
  std::function<int()> stop_signal;
  bool profile = false;
  bool replaces = false;       ///< the run may replace one of a different job
  bool replaces_file = false;  ///< [infer] to may be a file that exists
  /// Registers a function that is called at once with the first signal that asks to stop, on another thread. An empty
  /// function unregisters. Null: nothing is registered.
  std::function<void(std::function<void(int)>)> on_stop;
  metrics::RunOrigin origin;  ///< everything except the end time
  /// When the run must end, by [job] time_limit.
  std::optional<std::chrono::system_clock::time_point> ends_by = {};
  /// The numbers that [metrics] prometheus serves; null: none. Outlives the run.
  metrics::Exposition* numbers = nullptr;
  std::filesystem::path output;  ///< [job] output with the placeholders filled in by this process
};

/// A run in its output folder, from the lock to the summary. It belongs to the process that reports the job's result:
/// the only process, the launcher, or rank 0 if another launcher started the ranks.
class Run {
 public:
  /// Opens and locks the folder. `settings` outlives this object. Throws as metrics::LockedRunFolder does.
  Run(const job::Job& job, const RunSettings& settings);

  /// Removes an older run's files and writes job.ini. Returns a message about the older run, or "" if there was none.
  /// `resumed`: the checkpoint from which the run continues; null: none. If the run in this folder saved it, that run's
  /// metrics up to the checkpoint are kept. Throws Error{io}, also if another run uses [checkpoint] folder.
  [[nodiscard]] std::string begin(const checkpoint::OpenCheckpoint* resumed);

  /// Prepares a new attempt: removes the ranks' files of steps after `resumed`, and writes job.ini. REQUIRES: begin()
  /// was called, and no rank runs. Throws Error{io}.
  void begin_again(const job::Job& job, const checkpoint::OpenCheckpoint* resumed);
  /// Moves logs and flight records to a new folder of attempts_path(), and returns it. Throws Error{io}.
  [[nodiscard]] std::filesystem::path keep_record() const;

  /// The job, with the open folder as its output.
  [[nodiscard]] const job::Job& job() const noexcept { return job_; }
  [[nodiscard]] const metrics::LockedRunFolder& locked_folder() const noexcept { return locked_folder_; }

  /// Completes and writes the summary. If it cannot be written, or the folder no longer belongs to the run, the
  /// summary's status becomes "failed" for this reason, unless it names an error already. Throws nothing.
  void write_summary(metrics::Summary& summary) noexcept;
  /// Completes the summary of an attempt, and writes it to the attempt's folder. Throws Error{io}.
  void write_record(const std::filesystem::path& folder, metrics::Summary summary) const;
  /// Like write_summary(), after all ranks have ended; also joins their traces.
  void end(metrics::Summary& summary);

 private:
  void write_job() const;
  /// Removes the checkpoints that the run replaces.
  void replace_checkpoints();
  void complete(metrics::Summary& summary) const;

  const RunSettings& settings_;
  metrics::LockedRunFolder locked_folder_;
  std::optional<files::Folder> checkpoints_;  ///< the locked folder of checkpoints
  job::Job job_;
};

/// The summary of a job that was asked to stop before its first step. `when`: a text such as "before
/// anything was started".
[[nodiscard]] metrics::Summary stopped_early(const job::Job& job, int signal, std::string_view when);

/// The summary of a job that was asked to stop during its preparation; nothing if it was not.
[[nodiscard]] std::optional<metrics::Summary> stopped_before_start(const job::Job& job, const RunSettings& settings);

/// Runs the task of [job] and writes to [job] output: job.ini (as run), metrics.jsonl, log/rank-N.log, summary.json,
/// and weights.safetensors (train) or state.safetensors (iterate). A job that fails while it runs gets a summary and a
/// log; run_job() throws then if runs_here(job), and returns the summary if not. Exit code after a signal: see
/// train::exit_code_of_stop(). Throws Error{job, data, plugin, usage} before the output folder is touched.
[[nodiscard]] metrics::Summary run_job(const job::Job& job, const RunSettings& settings);

}  // namespace shardrun::run
