#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/infer/session.h"
#include "core/job/job.h"
#include "core/metrics/record.h"
#include "core/metrics/run_folder.h"
#include "core/partition/program.h"
#include "core/runtime/executor.h"
#include "core/screen/progress.h"
#include "core/train/rank_link.h"

#include <shardrun/sdk/transport/core_wait.hpp>

namespace shardrun::train {

/// What is known of a rank's summary before the run: the number of parameters, bytes of data, and planned memory.
[[nodiscard]] metrics::Summary planned_summary(const compile::Compiled& compiled);

/// What the process provides for a rank's steps.
struct StepSettings {
  metrics::Display& display;
  const metrics::RunFolder& folder;  ///< of [job] output; the job's `output` is its root
  RankLink& link;
  bool profile = false;
  /// When the run must end, by [job] time_limit.
  std::optional<std::chrono::system_clock::time_point> ends_by = {};
  int standard_input = 0;  ///< the descriptors for which "-" stands in [infer], on the first rank
  int standard_output = 1;
  // For a job that continues prompts.
  std::int64_t prompts = INT64_MAX;                                    ///< so many are read at most
  std::function<void(const runtime::Executor& executor)> begun = {};   ///< called when the states have their values
  std::function<void(const infer::Computed& computed)> computed = {};  ///< gets all logits
  /// Called on the first rank for each prompt: its number, counted from 1, its line, and JSON of its id, or "".
  std::function<void(std::int64_t number, std::int64_t line, const std::string& id)> added = {};
  /// Called on all ranks if they have drawn different tokens; no more are drawn then. Null: that is Error{internal}.
  std::function<void()> parted = {};
};

/// Runs one rank's part of the task of [job]. Metrics, log and results go to the folder of [job] output, which is open.
/// Returns the summary with this rank's part. If the job fails, stores its summary in `failed` and throws.
[[nodiscard]] metrics::Summary run_steps(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                                         metrics::Summary& failed);

/// Throws Error{data} for a line of the file of prompts that would end a job which continues them. Reads none if
/// data::prompts_of() counts none, or if the job goes on behind such a line.
void check_prompts(const job::Job& job, const compile::Compiled& compiled);

/// Fills the inputs of the function `iterate` for a step, counted from 0, with the samples from `first_sample` on.
/// Returns the scalars for the call.
[[nodiscard]] device::Scalars feed_iteration(const job::Job& job, const compile::Compiled& compiled,
                                             runtime::Executor& executor, std::size_t program, std::int64_t step,
                                             std::int64_t first_sample);

/// The exit code of a run that a signal stopped: 128 + the signal or, with [checkpoint], EX_TEMPFAIL of sysexits.h,
/// which says that the same command continues the run.
[[nodiscard]] int exit_code_of_stop(const job::Job& job, int signal) noexcept;

/// The number of steps between the lines of `shardrun run --profile`.
[[nodiscard]] std::int64_t profile_interval(const job::Job& job);

/// The unit of a job's progress per second: tokens, samples (rows of arrays), records or iterations.
[[nodiscard]] std::string rate_unit(const job::Job& job);

/// One step on this rank. Times are in seconds.
struct StepMeasure {
  double duration = 0;
  double exposed = 0;  ///< communication for which the rank waited
  double hidden = 0;   ///< communication while the rank computed
  double input = 0;    ///< reading samples
  double late = 0;     ///< by how much transfers began late
  runtime::Starved starved;
  partition::SentBytes sent;
};

/// Measures a step from the construction to end(). `executor` outlives this object.
class StepMeter {
 public:
  explicit StepMeter(const runtime::Executor& executor);
  /// Call it when all work of the step has been enqueued. Bytes sent from now on belong to another step.
  void all_is_given();
  /// Call it when the step before, which was still in flight, has ended: this step's time begins now.
  void begin_again();
  [[nodiscard]] double seconds() const;  ///< since the step began
  [[nodiscard]] StepMeasure end() const;

 private:
  const runtime::Executor& executor_;
  partition::SentBytes before_;               ///< sent before the step
  std::optional<partition::SentBytes> sent_;  ///< what the step has sent; nothing before all_is_given()
  double exposed_ = 0;
  double hidden_ = 0;
  double input_ = 0;
  double late_ = 0;
  runtime::Starved starved_;
  std::chrono::steady_clock::time_point begin_;
};

/// The bytes that a program has sent so far, divided by `calls`, its number of calls. REQUIRES: no call is under way.
[[nodiscard]] partition::SentBytes sent_in_call(const runtime::Executor& executor, std::size_t program,
                                                std::int64_t calls);

/// Sets the slowest link to this rank and the sum of the others. `before`, `now`: what each rank had sent by an
/// earlier moment (empty: nothing) and by now. A link whose bytes or time have not grown counts as unused.
void set_links(metrics::RankRates& rates, const std::vector<sdk::Arrivals>& before,
               const std::vector<sdk::Arrivals>& now);

/// Counts and times how often this process was stopped (SIGSTOP, a frozen control group). A thread notices that it
/// slept for longer than it asked to, although it did not wait for a core. A pause of a virtual machine or a wait for
/// swapped memory counts, too. Finds none if the system does not tell how long a thread waited for a core (Linux:
/// schedstat). Any thread.
class Stops {
 public:
  struct Sum {
    std::int64_t count = 0;
    double seconds = 0;
  };

  [[nodiscard]] Sum sum() const noexcept {
    return {count_.load(), std::chrono::duration<double>(std::chrono::nanoseconds(nanoseconds_.load())).count()};
  }

 private:
  void look() noexcept;

  std::atomic<std::int64_t> count_ = 0;
  std::atomic<std::int64_t> nanoseconds_ = 0;
  // Used only by the ticker's thread.
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
  std::optional<std::int64_t> waited_;  ///< nanoseconds that the thread waited for a core until `looked_`
  sdk::CoreWait core_wait_;
  static constexpr std::chrono::milliseconds interval{25};
  screen::Ticker ticker_{interval, [this] { look(); }};
};

/// The learning rate of a step, counted from 0. A linear warm-up over `warmup` steps is followed by constant, linear or
/// cosine decay (Loshchilov & Hutter 2017, arXiv:1608.03983, one period). The step after the last would
/// have the minimum.
[[nodiscard]] double learning_rate(const job::TrainSettings& train, std::int64_t step);

}  // namespace shardrun::train
