#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "core/metrics/record.h"
#include "core/metrics/run_folder.h"
#include "core/train/rank_link.h"

namespace shardrun::train {

/// The part of a rank's summary that is known before the run: its parameters, and its part with the planned values.
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
};

/// Runs one rank's part of the task of [job]. Metrics, log and results go to the folder of [job] output, which is open.
/// Returns the summary with this rank's part. If the job fails, stores its summary in `failed` and throws.
[[nodiscard]] metrics::Summary run_steps(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                                         metrics::Summary& failed);

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

/// The unit of a job's progress per second: tokens, samples (rows of arrays) or iterations.
[[nodiscard]] std::string rate_unit(const job::Job& job);

}  // namespace shardrun::train
