#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"
#include "core/metrics/step_trace.h"
#include "core/runtime/executor.h"

namespace shardrun::train {

/// Records the steps that [job] trace asks for.
class Tracer {
 public:
  /// Takes room for all of them. REQUIRES: the job is to be traced. `compiled` outlives this.
  Tracer(const job::Job& job, const compile::Compiled& compiled);

  /// Runs a step, counted from 0, and records it if it is one of them; one that throws, too.
  template <typename Run>
  auto step(std::int64_t step, runtime::Executor& executor, const Run& run) {
    const Recording recording(*this, executor, step);
    return run();
  }

  /// Whether there is something that is not written yet, and no more to come.
  [[nodiscard]] bool is_due() const noexcept { return !written_ && steps_.size() == most_steps_; }
  /// Writes what has been recorded so far, once: the rank's file. Nothing was: no file.
  void write(const std::filesystem::path& output);

 private:
  class Recording {
   public:
    Recording(Tracer& tracer, runtime::Executor& executor, std::int64_t step);
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
    ~Recording();

   private:
    Tracer& tracer_;
    runtime::Executor& executor_;
    const bool is_recorded_;
  };

  const compile::Compiled& compiled_;
  std::int64_t first_ = 0;  ///< counted from 0
  std::size_t most_steps_ = 0;
  runtime::Timeline timeline_;
  std::vector<metrics::TracedStep> steps_;
  bool written_ = false;
};

/// Joins the traces that ranks have left into one; nothing where there is none. For the end of a run, however it ended:
/// a fault is told on standard error, and is not the run's.
void join_traces(const job::Job& job);

}  // namespace shardrun::train
