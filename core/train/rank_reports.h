#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job.h"
#include "core/launch/launch.h"
#include "core/metrics/log.h"
#include "core/metrics/progress.h"
#include "core/metrics/record.h"
#include "core/metrics/screen.h"
#include "core/metrics/summary.h"
#include "core/metrics/ticker.h"
#include "core/train/rank_link.h"
#include "core/train/run.h"

namespace shardrun::train {

// What ranks tell the launcher, by the kind of message: a line to print, and a rank's summary.
inline constexpr const char* line_message = "line";
inline constexpr const char* summary_message = "summary";

/// What the first rank shows is shown by the launcher.
[[nodiscard]] std::unique_ptr<metrics::Display> display_of_launcher(RankLink& link);

/// What the ranks of a running job report, as one: on the screen, in their logs and in one summary. It does not matter
/// who started them. Belongs to one thread at a time.
class RankReports {
 public:
  /// `logs`: of how many ranks, from the first on, the logs are written to here. `settings` outlives this.
  RankReports(const job::Job& job, const RunSettings& settings, int logs);

  void show(const launch::OutputLine& line);
  void take(const launch::RankMessage& message);
  /// What the run replaces, if anything.
  void tell_older(const std::string& older);
  /// Whether the first rank has come to its steps.
  [[nodiscard]] bool has_begun() const { return has_begun_; }
  void log(std::string_view line) { log(0, line); }
  /// On any thread.
  void notice(std::string_view line) { progress_.print(line); }

  /// The first rank's summary with every rank's part. That of a rank that died has what was planned, where it came so
  /// far.
  [[nodiscard]] metrics::Summary merge(const launch::LaunchResult& result);
  /// Waits until all is on the screen; where it was stopped, for as long as nothing went wrong and nobody asks to stop.
  void finish_screen(const metrics::Summary& summary);

 private:
  void note(const metrics::ProgressUpdate& update);
  /// To a rank's log; the person is told where that cannot be written any more.
  void log(std::size_t rank, std::string_view line);
  void show_activity(std::string_view text);
  /// What the first rank would have said of the run, had it come to its end.
  void fill(metrics::Summary& summary) const;

  const job::Job& job_;
  const RunSettings& settings_;
  const std::int64_t first_step_;  ///< done before this run
  metrics::Screen screen_;
  metrics::Progress progress_;
  metrics::Ticker ticker_;
  std::string results_;  ///< for the end
  std::atomic<bool> has_begun_ = false;
  Results saved_ = Results::none;
  std::int64_t unshown_ = 0;  ///< lines of ranks since the last that was shown
  std::vector<std::unique_ptr<metrics::Log>> logs_;
  std::map<int, metrics::Summary> summaries_;  ///< the last of each rank: what is planned, then what it did
  metrics::ProgressUpdate last_;               ///< with the last validation loss
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace shardrun::train
