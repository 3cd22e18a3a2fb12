#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/job/job.h"
#include "core/metrics/progress.h"
#include "core/metrics/rundir.h"
#include "core/metrics/summary.h"

namespace shardrun::train {

/// What a run shows and where it is told to stop.
struct RunSettings {
  metrics::ProgressSink progress;
  std::function<int()> stop_signal;  ///< the signal that asked to stop, or 0; looked at between steps
  bool profile = false;
  /// Has what it is given called with the first signal that asks to stop, as soon as that comes, on another thread; an
  /// empty function ends that. May be empty itself.
  std::function<void(std::function<void(int)>)> on_stop;
  metrics::RunOrigin origin;     ///< all but when it ended
  std::filesystem::path output;  ///< [job] output, with what this process has filled in for its placeholders
};

/// A run in its output folder, from the lock to the summary. It belongs to the process that tells what became of the
/// job: the only one, the launcher, or rank 0's where another launcher has started the ranks.
class Run {
 public:
  /// Opens and locks the folder. `settings` outlives this. Throws as metrics::RunDirectory.
  Run(const job::Job& job, const RunSettings& settings);

  /// Removes what an older run has left and writes job.ini. Returns what to tell the person about the older run, or ""
  /// where there was none. Throws Error{io}.
  [[nodiscard]] std::string begin();

  /// The job, whose output is the open folder.
  [[nodiscard]] const job::Job& job() const noexcept { return job_; }
  [[nodiscard]] const metrics::RunDirectory& directory() const noexcept { return directory_; }

  /// Completes and writes the summary. Where it cannot be written, or the folder is no longer the run's, the summary
  /// fails for this reason, unless it has failed before. Throws nothing.
  void write_summary(metrics::Summary& summary) noexcept;
  /// The same at the run's end: all ranks have ended, and their traces become one.
  void end(metrics::Summary& summary);

 private:
  const RunSettings& settings_;
  metrics::RunDirectory directory_;
  job::Job job_;
};

/// The summary of a job that was asked to stop before its first step. `when`: "before anything was started".
[[nodiscard]] metrics::Summary stopped_early(int signal, std::string_view when);

/// The summary of a job that was asked to stop while it was prepared; nothing where it was not.
[[nodiscard]] std::optional<metrics::Summary> stopped_before_start(const RunSettings& settings);

/// What the rate of a job's progress counts a second: tokens, samples where a sample is a row of arrays, iterations.
[[nodiscard]] std::string rate_unit(const job::Job& job);

}  // namespace shardrun::train
