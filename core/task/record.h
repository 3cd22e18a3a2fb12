#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job.h"
#include "core/metrics/jsonl.h"
#include "core/metrics/log.h"
#include "core/metrics/progress.h"
#include "core/metrics/run_folder.h"
#include "core/metrics/summary.h"
#include "core/runtime/executor.h"
#include "core/task/compile.h"

namespace shardrun::task {

/// The activity that begins the steps of a run.
inline constexpr std::string_view first_step_activity = "first step";

/// Where a run shows how it goes.
class Display {
 public:
  Display() = default;
  Display(const Display&) = delete;
  Display& operator=(const Display&) = delete;
  virtual ~Display() = default;

  virtual void update(const metrics::ProgressUpdate& update) = 0;
  /// What is being done, as Progress::now_at.
  virtual void now_at(std::string_view what, std::int64_t done, std::int64_t total) = 0;
  void now_at(std::string_view what) { now_at(what, 0, 0); }
  /// A line of its own, above the live one.
  virtual void line(std::string_view text) = 0;
  /// The live line is left standing.
  virtual void finish() = 0;
  /// Results for a person: the sample, a table of times.
  virtual void result(std::string_view text) = 0;
};

/// What can be said of a rank's run before it: its parameters, and its part with what is planned.
[[nodiscard]] metrics::Summary planned_summary(const Compiled& compiled);

/// What one rank keeps of a run: its log, and what becomes its part of the summary; the first rank's metrics.jsonl too.
class Record {
 public:
  /// `folder`: what the job writes to; outlives this.
  Record(const job::Job& job, const Compiled& compiled, Display& display, const metrics::RunFolder& folder, int rank);

  [[nodiscard]] bool is_first() const noexcept { return lines_.has_value(); }

  /// To the log; the first rank's to the person too.
  void say(const std::string& line);
  /// To the log alone; the person is told where that cannot be written any more.
  void log(const std::string& line);
  void count_step(double seconds);
  /// A line of metrics.jsonl; nothing on other ranks. Throws Error{io}, also where the folder is no longer the run's.
  void write(const metrics::StepRecord& step);
  void write(std::span<const metrics::JsonField> fields);
  void update(const metrics::ProgressUpdate& update);
  void now_at(std::string_view what, std::int64_t done = 0, std::int64_t total = 0);
  void finish_progress();

  /// The summary's end. `wire_bytes`: what the transports say.
  void finish(const runtime::Executor& executor, const char* status, int exit_code, std::uint64_t wire_bytes);

  metrics::Summary summary;  ///< with this rank's part alone

 private:
  Display& display_;
  const metrics::RunFolder& folder_;
  std::chrono::steady_clock::time_point begin_;
  metrics::Log log_;
  std::optional<metrics::JsonlWriter> lines_;
  std::vector<double> step_seconds_;
};

/// What the rate of a job's progress counts a second: tokens, samples where a sample is a row of arrays, iterations.
[[nodiscard]] inline std::string rate_unit(const job::Job& job) {
  return job.task == job::Task::iterate ? "it" : job.data.arrays.empty() ? "tok" : "samples";
}

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace shardrun::task
