#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/weights.h"
#include "core/metrics/record.h"
#include "core/train/checkpointing.h"
#include "core/train/replicas.h"
#include "core/train/steps.h"
#include "core/train/tracer.h"

namespace shardrun::train {

// The tasks of [job]. Their contract is that of run_steps() (steps.h).
[[nodiscard]] metrics::Summary run_training(const job::Job& job, compile::Compiled& compiled,
                                            const StepSettings& settings, metrics::Summary& failed);
[[nodiscard]] metrics::Summary run_inferring(const job::Job& job, compile::Compiled& compiled,
                                             const StepSettings& settings, metrics::Summary& failed);
[[nodiscard]] metrics::Summary run_predicting(const job::Job& job, compile::Compiled& compiled,
                                              const StepSettings& settings, metrics::Summary& failed);
[[nodiscard]] metrics::Summary run_generating(const job::Job& job, compile::Compiled& compiled,
                                              const StepSettings& settings, metrics::Summary& failed);
[[nodiscard]] metrics::Summary run_iterating(const job::Job& job, compile::Compiled& compiled,
                                             const StepSettings& settings, metrics::Summary& failed);

/// Rethrows the error that is being handled. The message of an error between ranks then begins with the step.
/// `step` is counted from 0; messages count from 1. A TransferError brings its own step.
[[noreturn]] void rethrow_with_step(const Error& error, std::int64_t step);

/// Calls `run`, and rethrows its errors with rethrow_with_step().
template <typename Run>
auto naming_step(std::int64_t step, const Run& run) {
  try {
    return run();
  } catch (const Error& error) {
    rethrow_with_step(error, step);
  }
}

/// What one rank does around the steps of each task: records, traces, comparisons of replicas, stop requests, saving.
class RankTask {
 public:
  /// The arguments outlive this object.
  RankTask(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings);

 protected:
  /// Connects the executor to the other ranks, and reports what will run.
  void prepare(runtime::Executor& executor);

  /// Calls `run`, which returns the signal that stopped the task, or 0. Finishes the records and returns the summary.
  /// If `run` throws, stores the summary in `failed` and throws.
  metrics::Summary guarded(runtime::Executor& executor, metrics::Summary& failed, const std::function<int()>& run);

  /// Waits for the other ranks. The first step begins when this returns.
  void begin_steps();
  /// Sets what this rank is doing, for reports if the job fails, and for the screen. `activity`: a text for people; not
  /// needed for a step that follows another.
  void now_at(std::string_view phase, std::int64_t step, std::string_view activity = {});

  /// Gives the states the values of the checkpoint from which the run continues, if there is one.
  void resume(const runtime::Executor& executor);

  /// The rates of a step, counted from 0. They are added to the next report to the launcher; with --profile all
  /// ranks report after each profile_interval().
  metrics::RankRates rates_of(std::int64_t step, const StepMeasure& measured);
  /// flops_per_s divided by [cluster] flops; nothing if either is unknown.
  [[nodiscard]] std::optional<double> utilisation(const metrics::RankRates& rates) const;

  /// The signal that asked to stop, on every rank at the same step; 0: none.
  [[nodiscard]] int stopped() { return agreed().signal; }
  /// Called after the step with this number, counted from 0. Saves a checkpoint if one is due. `heard`: the signal that
  /// the step's evaluation has received. Returns the signal that asked to stop.
  int between_steps(std::int64_t step, int heard);

  // For steps that the device finishes after the host has enqueued later ones. At most two are in flight.

  struct UnderWay {
    std::int64_t step = 0;
    StepMeter meter;
  };
  /// Calls `give`, which enqueues the work of a step, counted from 0. Then enqueues the ranks' agreement after it.
  void begin_step(std::int64_t step, runtime::Executor& executor, const std::function<void()>& give);
  /// Ends steps in flight, the oldest first, until at most `most` are left. If the ranks have agreed on a stop, a
  /// checkpoint or a pause, ends all. `end` waits for a step and records it. Returns the signal that asked to stop.
  int end_steps(std::size_t most, const std::function<void(const UnderWay&)>& end);
  /// Whether this step must end before the next begins: it is the last, traced, profiled or checked, or a checkpoint is
  /// due.
  [[nodiscard]] bool ends_at_once(std::int64_t step) const;
  /// Whether the run is to end with a checkpoint and no results, because it was asked to stop.
  [[nodiscard]] bool ends_with_checkpoint(int signal) const noexcept { return checkpointing_ && signal != 0; }
  /// Saves the last checkpoint. A completed run has written its results before, so a run that continues finds them.
  void save_at_end(int signal);

  /// Runs the step with this number, counted from 0. Traces it if it is to be traced.
  template <typename Run>
  auto traced(std::int64_t step, runtime::Executor& executor, const Run& run) {
    executor.begin_step(step);
    return naming_step(step, [&] { return tracer_ ? tracer_->step(step - first_.step, executor, run) : run(); });
  }
  /// Begins to trace a step, counted from 0. The trace lasts until the next call, or until end_traced().
  void begin_traced(std::int64_t step);
  /// Ends a step of begin_traced(). `existed`: false if it turned out that there was no such step.
  void end_traced(bool existed);
  /// REQUIRES: prepare() was called.
  [[nodiscard]] runtime::Executor* executor() const noexcept { return executor_; }
  /// Writes the trace if it is complete. Called between steps, when nothing waits for this rank.
  void write_trace_if_due();

  /// Compares replicas after the step with this number, counted from 0, if checks_after() says so.
  void check_replicas_after(std::int64_t step, bool anyway);
  /// Compares replicas, unless they were found equal after the latest step and no state `changed` since.
  void check_before_save(bool changed);
  /// Whether the checks of [job] check_every are due after the step with this number, counted from 0. `anyway`: they
  /// are due unless check_every is -1.
  [[nodiscard]] bool checks_after(std::int64_t step, bool anyway) const noexcept {
    return job_.check_every >= 0 && (anyway || (job_.check_every > 0 && (step + 1) % job_.check_every == 0));
  }
  /// Whether replicas are ever compared.
  [[nodiscard]] bool compares_replicas() const noexcept { return job_.checks.replicas && job_.check_every >= 0; }

  /// Writes the run's results.
  void save_results(const std::vector<checkpoint::StateFile>& files, const runtime::Executor& executor);
  void save(const std::vector<checkpoint::StateFile>& files, const runtime::Executor& executor);

  const job::Job& job_;
  compile::Compiled& compiled_;
  const StepSettings& settings_;
  metrics::Record record_;
  checkpoint::Position first_;  ///< the position at which this run begins
  std::int64_t last_step_ = 0;  ///< the step at which the job ends

 private:
  /// The times from which this rank asks the others for something. `steps_to_come`: steps until a request takes effect.
  [[nodiscard]] Due own_due(int steps_to_come);
  /// Reports the steps since the last report. All ranks call it after the same step.
  void report_rates();
  /// Adds to a report what has arrived from other ranks since the last call.
  void add_arrivals(metrics::RankRates& rates);
  [[nodiscard]] Wish agreed(int steps_to_come = 0);
  /// Does what the ranks agreed on, between two steps. Returns the signal that asked to stop.
  int act_on(const Wish& wish);
  void save_checkpoint(bool at_end);
  void check_replicas(std::int64_t step);
  void finish(const runtime::Executor& executor, const char* status, int exit_code);
  void tell_memory(std::string_view field, std::uint64_t bytes);
  void show_profile(const runtime::Executor& executor) const;
  void write_trace_at_end();

  runtime::Executor* executor_ = nullptr;  ///< set by prepare()
  std::deque<UnderWay> under_way_;
  double flops_ = 0;        ///< operations of this rank per step; 0: unknown
  std::int64_t stage_ = 0;  ///< this rank's stage in a pipeline
  metrics::StepRates since_reported_;
  Due::Clock::time_point reported_at_;
  std::optional<Stops> stops_;           ///< only if there are several ranks, and from the first step on
  Stops::Sum reported_stops_;            ///< at the last report
  std::vector<sdk::Arrivals> arrivals_;  ///< at the last report, by rank
  std::optional<Tracer> tracer_;
  std::optional<Tracer::Recording> recording_;
  std::optional<Replicas> replicas_;            ///< only if replicas are compared, and no engine runs
  std::optional<Checkpointing> checkpointing_;  ///< only with [checkpoint]
  bool evaluated_ = true;                       ///< the evaluation after the last step was completed
};

}  // namespace shardrun::train
