#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/stop.h"
#include "core/metrics/jsonl.h"
#include "core/metrics/log.h"
#include "core/metrics/other_formats.h"
#include "core/metrics/rates.h"
#include "core/metrics/run_folder.h"
#include "core/metrics/summary.h"
#include "core/screen/progress.h"

namespace shardrun::metrics {

/// The text of the activity with which the steps of a run begin.
inline constexpr std::string_view first_step_activity = "first step";

/// Shows a run's progress.
class Display {
 public:
  Display() = default;
  Display(const Display&) = delete;
  Display& operator=(const Display&) = delete;
  virtual ~Display() = default;

  virtual void update(const screen::ProgressUpdate& update) = 0;
  /// Sets the current activity, as screen::Progress::now_at does.
  virtual void now_at(std::string_view what, std::int64_t done, std::int64_t total) = 0;
  void now_at(std::string_view what) { now_at(what, 0, 0); }
  /// Sends a line of numbers to the process that serves the run's numbers; see Exposition::take.
  virtual void numbers(std::string_view line) = 0;
  /// Reports what this rank did in some steps. Every rank must report the same steps.
  virtual void rates(const RankRates& rates) = 0;
  /// Prints a line above the progress line.
  virtual void line(std::string_view text) = 0;
  /// Keeps the progress line on the screen.
  virtual void finish() = 0;
  /// Shows results to people: the sample, a table of times.
  virtual void result(std::string_view text) = 0;
  /// Sets the state of the job's result files.
  virtual void results_are(Results results) = 0;
};

/// Where the lines of metrics.jsonl go beside that file, as [metrics] says.
struct OtherMetrics {
  bool csv = false;
  bool events = false;                       ///< for TensorBoard
  bool numbers = false;                      ///< to Display::numbers
  std::span<const std::string_view> fields;  ///< the fields that a line can have, in order
  std::int64_t done = 0;                     ///< steps done before the first line
};

/// One rank's records of a run: its log, its part of the summary and, on the first rank, metrics.jsonl.
class Record {
 public:
  /// `planned`: facts from the plan. `folder`: the run's folder. REQUIRES: folder and display outlive this object.
  Record(Display& display, const RunFolder& folder, int rank, Summary planned);

  [[nodiscard]] bool is_first() const noexcept { return lines_.has_value(); }

  /// Begins to keep metrics elsewhere, too. Called before anything is written. Throws Error{io}.
  void keep_also(const OtherMetrics& others);

  /// Writes to the log; on the first rank also to the screen.
  void say(const std::string& line);
  /// Writes only to the log. If that fails, tells the person.
  void log(const std::string& line);
  /// Counts a step, of which the median time is told.
  void count_step(double seconds);
  /// Writes a line of metrics.jsonl; does nothing on other ranks. Throws Error{io}, also if the folder no longer
  /// belongs to the run.
  void write(const StepRecord& step);
  void write(std::span<const JsonField> fields);
  void add_validation(std::int64_t step, double val_loss);
  /// Sends some numbers of this rank to the process that serves the run's numbers, if there is one.
  void tell(std::span<const JsonField> numbers);
  void update(const screen::ProgressUpdate& update);
  void results_are(Results results);
  void now_at(std::string_view what, std::int64_t done = 0, std::int64_t total = 0);
  void finish_progress();

  /// Completes the summary.
  void finish(const char* status, int exit_code);

  Summary summary;  ///< only this rank's part

 private:
  Display& display_;
  const RunFolder& folder_;
  std::chrono::steady_clock::time_point begin_;
  Log log_;
  std::optional<JsonlWriter> lines_;
  std::optional<CsvWriter> csv_;
  std::optional<EventFile> events_;
  bool tells_ = false;
  std::vector<double> step_seconds_;
  std::size_t timed_ = 0;  ///< steps
};

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace shardrun::metrics
