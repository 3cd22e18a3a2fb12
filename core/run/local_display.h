#pragma once

#include <atomic>
#include <string_view>

#include "core/job/job.h"
#include "core/metrics/record.h"
#include "core/run/run.h"
#include "core/screen/progress.h"
#include "core/screen/screen.h"

namespace shardrun::run {

/// Shows a job that runs or is prepared in this process on the process's own screen. Answers a request to stop at once.
/// The destructor keeps the progress line, and waits until the output is shown or a stop is requested. Until then, a
/// blocked screen delays nothing.
class LocalDisplay final : public metrics::Display {
 public:
  /// `settings` outlives this object.
  LocalDisplay(const job::Job& job, const RunSettings& settings);
  LocalDisplay(const LocalDisplay&) = delete;
  LocalDisplay& operator=(const LocalDisplay&) = delete;
  ~LocalDisplay() override;

  /// Ends the display before ranks are started, because a screen must not delay them. Waits for the output as
  /// screen::Screen::finish() does by default.
  void hand_over();

  using metrics::Display::now_at;
  void update(const screen::ProgressUpdate& update) override { progress_.update(update); }
  void now_at(std::string_view what, std::int64_t done, std::int64_t total) override;
  void line(std::string_view text) override { progress_.print(text); }
  void numbers(std::string_view line) override;
  void rates(const metrics::RankRates& rates) override;
  void finish() override;
  void result(std::string_view text) override;
  void results_are(Results) override {}

 private:
  const RunSettings& settings_;
  const double rank_flops_;  ///< [cluster] flops
  std::atomic<bool> is_at_steps_ = false;
  screen::Screen screen_;
  screen::Progress progress_;
  screen::Ticker ticker_;
};

}  // namespace shardrun::run
