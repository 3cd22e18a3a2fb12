#pragma once

#include "core/job/job.h"
#include "core/metrics/summary.h"
#include "core/train/run.h"

namespace shardrun::train {

/// Does what [job] task says and leaves in [job] output: job.ini (as run), metrics.jsonl, log/rank-0.log, summary.json,
/// and weights.safetensors (train) or state.safetensors (iterate). A job that fails while it runs leaves its summary
/// and log, and throws; one that is stopped by a signal returns exit code 128 + signal. Throws Error{job, data, plugin}
/// before the output folder is touched.
[[nodiscard]] metrics::Summary run_job(const job::Job& job, const RunSettings& settings);

}  // namespace shardrun::train
