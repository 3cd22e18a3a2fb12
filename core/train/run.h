#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"
#include "core/metrics/progress.h"
#include "core/metrics/record.h"
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

/// What the rate of a job's progress counts a second: tokens, samples where a sample is a row of arrays, iterations.
[[nodiscard]] inline std::string rate_unit(const job::Job& job) {
  return job.task == job::Task::iterate ? "it" : job.data.arrays.empty() ? "tok" : "samples";
}

/// What must hold before a process starts or the output folder is touched; `ranks_here`: how many of the job's ranks
/// share this machine, 0 where that is not known yet. Throws Error{job}. Returns lines to show first: ranks that are
/// idle, and how [cluster] memory differs from what is needed and from what the machine has.
std::vector<std::string> require_runnable(const job::Job& job, const compile::Compiled& compiled,
                                          std::int64_t ranks_here);

/// The part of require_runnable that is about memory, for ranks that learn only from each other how many share a
/// machine. Throws Error{job}.
void require_memory_here(const job::Job& job, const compile::Compiled& compiled, std::int64_t ranks_here);

/// A line each.
void show(const std::vector<std::string>& notices, metrics::Display& display);

/// Reads the job's data through (Dataset::check), on all cores that this process may use. Called before the output
/// folder is touched: once for all ranks that are started here, and by the first rank of each machine (by every rank,
/// where the launcher does not number those of a machine). Throws Error{data}.
void check_data(const compile::Compiled& compiled);

/// Makes of the job's data what training reads (Dataset::load), behind check_data. Throws Error{io}.
void load_data(const compile::Compiled& compiled);

/// As require_runnable, for ranks that are started here. Throws Error{job} where a transport wants another launcher's.
void require_launchable(const job::Job& job, const compile::Compiled& compiled);

/// Writes the summary of a run that ends now, with what it has saved. Where that cannot be, or the folder is no longer
/// the run's, the summary fails for this reason, unless it has failed before; this throws nothing.
void write_last_summary(const job::Job& job, const metrics::RunDirectory& directory, const RunSettings& settings,
                        metrics::Summary& summary) noexcept;

/// The job, as it writes to the folder that the directory holds.
[[nodiscard]] job::Job job_in(const metrics::RunDirectory& directory, job::Job job);

/// The summary of a job that was asked to stop before its first step. `when`: "before anything was started".
[[nodiscard]] metrics::Summary stopped_early(int signal, std::string_view when);

/// The summary of a job that was asked to stop while it was prepared; nothing where it was not.
[[nodiscard]] std::optional<metrics::Summary> stopped_before_start(const RunSettings& settings);

/// Does what [job] task says and leaves in [job] output: job.ini (as run), metrics.jsonl, log/rank-0.log, summary.json,
/// and weights.safetensors (train) or state.safetensors (iterate). A job that fails while it runs leaves its summary
/// and log, and throws; one that is stopped by a signal returns exit code 128 + signal. Throws Error{job, data, plugin}
/// before the output folder is touched.
[[nodiscard]] metrics::Summary run(const job::Job& job, const RunSettings& settings);

}  // namespace shardrun::train
