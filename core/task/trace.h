#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job.h"
#include "core/metrics/trace.h"
#include "core/runtime/executor.h"
#include "core/task/compile.h"

namespace shardrun::task {

/// A step while it was recorded: its time, and where its instructions begin in the timeline.
struct TracedStep {
  std::int64_t step = 0;  ///< counted from 1
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::size_t first_span = 0;
};

/// What an instruction's spans are called in a trace; and what tells them there from those of other things.
[[nodiscard]] std::string name_in_trace(const partition::Program& program, const partition::Instruction& instruction);
[[nodiscard]] std::string_view category_in_trace(const partition::Instruction& instruction) noexcept;

/// One rank's steps as a trace: a row of what it computed, moved and waited for, within the function and the step that
/// it belongs to; and below, for each mesh axis, as many rows as there were transfers under way at once, each transfer
/// from its start to where it was found complete.
[[nodiscard]] metrics::Trace trace_of(const std::vector<TracedStep>& steps, const runtime::Timeline& timeline,
                                      const partition::Programs& programs, const device::Device& device);

/// Records the steps that [job] trace asks for.
class Tracer {
 public:
  /// Takes room for all of them. REQUIRES: the job is to be traced. `compiled` outlives this.
  Tracer(const job::Job& job, const Compiled& compiled);

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

  const Compiled& compiled_;
  std::int64_t first_ = 0;  ///< counted from 0
  std::size_t most_steps_ = 0;
  runtime::Timeline timeline_;
  std::vector<TracedStep> steps_;
  bool written_ = false;
};

/// Joins the traces that ranks have left into one; nothing where there is none. For the end of a run, however it ended:
/// a fault is told on standard error, and is not the run's.
void join_traces(const job::Job& job);

}  // namespace shardrun::task
