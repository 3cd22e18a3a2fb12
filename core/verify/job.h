#pragma once

#include <cstdint>

#include "core/job/job.h"
#include "core/launch/rank.h"
#include "core/task/run.h"
#include "core/verify/report.h"

namespace shardrun::verify {

struct JobOutcome {
  metrics::Summary summary;  ///< with the root cause where the run itself failed
  Report report;             ///< of a run that did not
};

/// Runs the first steps of a job as it is configured, with its ranks and transports, in a temporary folder, and
/// compares them with the reference. The job's own output is not touched. Throws Error{job, data, plugin} before
/// anything starts.
[[nodiscard]] JobOutcome verify_job(const job::Job& job, std::int64_t steps, const task::RunSettings& settings);

/// What a process that was started so does: one rank's steps, with its snapshots in [job] output. Returns its exit
/// code.
[[nodiscard]] int record_as_rank(const job::Job& job, const launch::RankContext& context, std::int64_t steps);

}  // namespace shardrun::verify
