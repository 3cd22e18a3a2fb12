#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job.h"
#include "core/launch/launch.h"
#include "core/metrics/jsonl.h"
#include "core/metrics/log.h"
#include "core/metrics/record.h"
#include "core/metrics/slow_ranks.h"
#include "core/metrics/summary.h"
#include "core/run/run.h"
#include "core/screen/progress.h"
#include "core/screen/screen.h"
#include "core/train/rank_link.h"

namespace shardrun::run {

// Kinds of messages from ranks to the launcher: a line to print, and a rank's summary.
inline constexpr const char* line_message = "line";
inline constexpr const char* summary_message = "summary";

/// A display that shows the first rank's progress through the launcher.
[[nodiscard]] std::unique_ptr<metrics::Display> display_of_launcher(train::RankLink& link);

/// Combines the reports of a running job's ranks: on the screen, in their logs and in one summary. It does not depend
/// on who started the ranks. Only one thread at a time may use it.
class RankReports {
 public:
  /// `logs`: how many ranks, from the first on, have their logs written here. `first_step`: steps done before the run.
  /// `settings` outlives this object.
  RankReports(const job::Job& job, const RunSettings& settings, int logs, std::int64_t first_step);

  void show(const launch::OutputLine& line);
  void take(const launch::RankMessage& message);
  /// Tells the person which older run is replaced, if any.
  void tell_older(const std::string& older);
  /// Whether the first rank has reached its steps.
  [[nodiscard]] bool has_begun() const { return has_begun_; }
  void log(std::string_view line) { log(0, line); }
  /// Any thread may call it.
  void notice(std::string_view line) { progress_.print(line); }

  /// The first rank's summary with every rank's part. A rank that died has its planned part, if it had reported that.
  /// `folder`: the folder of the ranks' flight records.
  [[nodiscard]] metrics::Summary merge(const launch::LaunchResult& result, const std::filesystem::path& folder);
  /// Waits until everything is on the screen. If the screen is blocked, gives up after a short time, except after a run
  /// that succeeded: then it waits until somebody asks to stop.
  void finish_screen(const metrics::Summary& summary);

 private:
  void note(const screen::ProgressUpdate& update);
  /// Writes to a rank's log. If that fails, tells the person.
  void log(std::size_t rank, std::string_view line);
  void show_activity(std::string_view text);
  /// Keeps a rank's report until all ranks have reported the same steps.
  void take_rates(int rank, const metrics::RankRates& rates);
  /// Tells of ranks that begin or end to hold up the others.
  void look_for_slow_ranks(const std::vector<metrics::RankRates>& ranks);
  /// With --profile, shows the rates when enough steps are done.
  void show_rates(const std::vector<metrics::RankRates>& ranks);
  /// Writes a line of ranks.jsonl with what the ranks have reported since the line before. If that fails, tells the
  /// person, and writes no more.
  void write_times();
  /// Shows the line to the person, and writes it to the first rank's log.
  void tell(std::string_view line) {
    log(line);
    notice(line);
  }
  /// Fills in what the first rank would have reported at its end, from its latest progress.
  void fill(metrics::Summary& summary) const;

  const job::Job& job_;
  const RunSettings& settings_;
  const std::int64_t first_step_;  ///< steps done before this run
  screen::Screen screen_;
  screen::Progress progress_;
  screen::Ticker ticker_;
  std::string results_;  ///< to show at the end
  std::atomic<bool> has_begun_ = false;
  Results saved_ = Results::none;
  std::int64_t unshown_ = 0;  ///< lines of ranks that were left out since one was shown
  std::vector<std::unique_ptr<metrics::Log>> logs_;
  std::map<int, metrics::Summary> summaries_;  ///< the latest of each rank: planned values, then results
  std::map<std::int64_t, std::map<int, metrics::RankRates>> rates_;  ///< by step and rank
  metrics::SlowRanks slow_ranks_;
  std::vector<metrics::RankRates> since_shown_;    ///< sums by rank of what rates_line() has not shown; empty: none
  std::vector<metrics::RankRates> since_written_;  ///< sums by rank of what is not in `times_`; empty: none
  std::optional<metrics::JsonlWriter> times_;      ///< ranks.jsonl
  std::chrono::steady_clock::time_point written_at_ = std::chrono::steady_clock::now();
  screen::ProgressUpdate last_;  ///< with the latest validation loss
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace shardrun::run
