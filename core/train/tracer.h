#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/compile/compile.h"
#include "core/forecast/step_trace.h"
#include "core/job/job.h"
#include "core/runtime/executor.h"

namespace shardrun::train {

/// Records the steps that [job] trace asks for.
class Tracer {
 public:
  /// Reserves memory for all traced steps. `compiled` outlives this object. REQUIRES: the job is traced.
  Tracer(const job::Job& job, const compile::Compiled& compiled);

  /// Runs a step, counted from 0 in this run. Records it if it is to be traced, even if it throws.
  template <typename Run>
  auto step(std::int64_t step, runtime::Executor& executor, const Run& run) {
    const Recording recording(*this, executor, step);
    return run();
  }

  /// A step, counted from 0 in this run, that lasts as long as this object. It is recorded if it is to be traced.
  class Recording {
   public:
    Recording(Tracer& tracer, runtime::Executor& executor, std::int64_t step);
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording();

    /// Drops the recording, because there was no such step.
    void discard() noexcept { is_discarded_ = true; }

   private:
    Tracer& tracer_;
    runtime::Executor& executor_;
    const bool is_recorded_;
    bool is_discarded_ = false;
  };

  /// Whether the step with this number, counted from 0 in this run, is to be recorded.
  [[nodiscard]] bool records(std::int64_t step) const noexcept { return step >= first_ && steps_.size() < most_steps_; }
  /// Whether all steps are recorded but not yet written.
  [[nodiscard]] bool is_due() const noexcept { return !written_ && steps_.size() == most_steps_; }
  [[nodiscard]] bool has_steps() const noexcept { return !steps_.empty(); }
  /// Writes the rank's file with the steps recorded so far, once. If there are none, no file is written.
  void write(const std::filesystem::path& output);

 private:
  const compile::Compiled& compiled_;
  std::int64_t first_ = 0;  ///< counted from 0
  std::size_t most_steps_ = 0;
  runtime::Timeline timeline_;
  std::vector<forecast::TracedStep> steps_;
  bool written_ = false;
};

/// Joins the ranks' traces into one; does nothing if there are none. Called at the end of every run. Errors are written
/// to standard error and do not fail the run.
void join_traces(const job::Job& job);

}  // namespace shardrun::train
