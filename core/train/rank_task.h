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
#include "core/train/step_meter.h"
#include "core/train/steps.h"
#include "core/train/tracer.h"

namespace shardrun::train {

// The tasks of [job]. The contract is that of run_steps() (steps.h).
[[nodiscard]] metrics::Summary run_training(const job::Job& job, compile::Compiled& compiled,
                                            const StepSettings& settings, metrics::Summary& failed);
[[nodiscard]] metrics::Summary run_inferring(const job::Job& job, compile::Compiled& compiled,
                                             const StepSettings& settings, metrics::Summary& failed);
[[nodiscard]] metrics::Summary run_predicting(const job::Job& job, compile::Compiled& compiled,
                                              const StepSettings& settings, metrics::Summary& failed);
[[nodiscard]] metrics::Summary run_iterating(const job::Job& job, compile::Compiled& compiled,
                                             const StepSettings& settings, metrics::Summary& failed);

/// Rethrows the error that is being handled. Errors of operations between ranks begin with the step. `step` is counted
/// from 0; people read it counted from 1. A TransferError names its own.
[[noreturn]] void rethrow_with_step(const Error& error, std::int64_t step);

/// Calls `run`. Its errors are rethrown by rethrow_with_step().
template <typename Run>
auto naming_step(std::int64_t step, const Run& run) {
  try {
    return run();
  } catch (const Error& error) {
    rethrow_with_step(error, step);
  }
}

/// What one rank does around the steps of either task: records, traces, comparisons of replicas, stop requests, saving.
class RankTask {
 public:
  /// All three outlive this.
  RankTask(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings);

 protected:
  /// Connects the executor to the other ranks, and tells the person what runs.
  void prepare(runtime::Executor& executor);

  /// Calls `run`, which returns the signal that stopped the task, or 0. Finishes the record and returns its summary. If
  /// `run` throws, `failed` gets the summary.
  metrics::Summary guarded(runtime::Executor& executor, metrics::Summary& failed, const std::function<int()>& run);

  /// Awaits the other ranks. The first step begins now.
  void begin_steps();
  /// For reports about this rank if the job fails, and for the screen. `activity`: in words for the person; a step that
  /// follows another needs none.
  void now_at(std::string_view phase, std::int64_t step, std::string_view activity = {});

  /// Gives the states the values of the checkpoint that the run goes on from, if any.
  void resume(const runtime::Executor& executor);

  /// What this rank did in a step, counted from 0. With --profile all ranks show it now and then.
  metrics::RankRates rates_of(std::int64_t step, const StepMeasure& measured);
  /// flops_per_s over [cluster] flops; nothing if either is unknown.
  [[nodiscard]] std::optional<double> utilisation(const metrics::RankRates& rates) const;

  /// The signal that asked to stop, on every rank at the same step; 0: none.
  [[nodiscard]] int stopped() { return agreed().signal; }
  /// Called after the step with this number, counted from 0: saves a checkpoint if one is due. `heard`: the signal that
  /// the step's evaluation has heard. Returns the signal that asked to stop.
  int between_steps(std::int64_t step, int heard);

  // Steps that a device ends later than the host gives them. At most two are under way.

  struct UnderWay {
    std::int64_t step = 0;
    StepMeter meter;
  };
  /// Calls `give`, which gives the device the work of a step, counted from 0. Then gives it the ranks' agreement after
  /// the step.
  void begin_step(std::int64_t step, runtime::Executor& executor, const std::function<void()>& give);
  /// Ends steps under way, the oldest first, until no more than `most` are left, or none if the ranks have agreed on
  /// something that needs the end of all. `end` waits for a step and records it. Returns the signal that asked to stop.
  int end_steps(std::size_t most, const std::function<void(const UnderWay&)>& end);
  /// Whether the end of the step with this number must be known before the next begins, by [checkpoint] and [job].
  [[nodiscard]] bool ends_at_once(std::int64_t step) const;
  /// Whether the run is to end with a checkpoint alone: it was asked to stop.
  [[nodiscard]] bool ends_with_checkpoint(int signal) const noexcept { return checkpointing_ && signal != 0; }
  /// Saves the last checkpoint, of a run that has ended after its results: who goes on from it finds them.
  void save_at_end(int signal);

  /// Runs the step with this number, counted from 0; traces it if it is to be.
  template <typename Run>
  auto traced(std::int64_t step, runtime::Executor& executor, const Run& run) {
    executor.begin_step(step);
    return naming_step(step, [&] { return tracer_ ? tracer_->step(step - first_.step, executor, run) : run(); });
  }
  /// The same of a step that lasts from here to the next call of this, or to end_traced().
  void begin_traced(std::int64_t step);
  /// `existed`: false: there was no such step after all.
  void end_traced(bool existed);
  /// REQUIRES: prepare() was called.
  [[nodiscard]] runtime::Executor* executor() const noexcept { return executor_; }
  /// Called between steps, when nothing waits for it.
  void write_trace_if_due();

  /// Compares replicas after the step with this number, counted from 0, if `anyway` or if [job] check_every says so.
  void check_replicas_after(std::int64_t step, bool anyway);
  /// Compares replicas if they have changed since the last comparison.
  void check_before_save(bool changed);
  /// Whether what [job] check_every says is due after the step with this number, counted from 0. `anyway`: it is.
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
  checkpoint::Position first_;  ///< where this run begins
  std::int64_t last_step_ = 0;  ///< where the job ends

 private:
  /// When this rank asks for something by itself. `steps_to_come`: before it is acted on.
  [[nodiscard]] Due own_due(int steps_to_come) { return checkpointing_ ? checkpointing_->due(steps_to_come) : Due{}; }
  [[nodiscard]] Wish agreed(int steps_to_come = 0);
  /// Does what the ranks agreed on, between two steps. Returns the signal that asked to stop.
  int act_on(const Wish& wish);
  void save_checkpoint(bool at_end);
  void check_replicas(std::int64_t step);
  void finish(const runtime::Executor& executor, const char* status, int exit_code);
  void show_profile(const runtime::Executor& executor) const;
  void write_trace_at_end();

  runtime::Executor* executor_ = nullptr;  ///< since prepare()
  std::deque<UnderWay> under_way_;
  double flops_ = 0;                ///< of this rank in a step; 0: unknown
  metrics::RankRates since_shown_;  ///< of the steps since rates were shown
  std::optional<Tracer> tracer_;
  std::optional<Tracer::Recording> recording_;
  std::optional<Replicas> replicas_;            ///< with several ranks
  std::optional<Checkpointing> checkpointing_;  ///< with [checkpoint]
  bool evaluated_ = true;                       ///< whether the evaluation after the last step came to its end
};

}  // namespace shardrun::train
