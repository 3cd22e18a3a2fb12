#pragma once

#include "core/job/job.h"
#include "core/metrics/summary.h"
#include "core/run/run.h"

namespace shardrun::run {

/// Runs the task of [job] and writes to [job] output: job.ini (as run), metrics.jsonl, log/rank-0.log, summary.json,
/// and weights.safetensors (train) or state.safetensors (iterate). If the job fails while it runs, writes its summary
/// and log, and throws. If a signal stops it, the exit code is 128 + signal. Throws Error{job, data, plugin} before the
/// output folder is touched.
[[nodiscard]] metrics::Summary run_job(const job::Job& job, const RunSettings& settings);

}  // namespace shardrun::run
