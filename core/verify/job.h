#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/launch/rank.h"
#include "core/run/rank_process.h"
#include "core/run/run.h"
#include "core/verify/report.h"

namespace shardrun::verify {

struct JobOutcome {
  metrics::Summary summary;  ///< with the root cause if the run itself failed
  Report report;             ///< empty if the run failed
};

struct JobSettings {
  std::int64_t steps = 1;
  std::vector<std::string> tensors = {};  ///< globs of the tensors to compare; none: all
  /// Runs all ranks in this process, one after the other, on the unit of the first: without transports and launcher.
  bool in_process = false;
  run::RunSettings run = {};
};

/// Runs the first steps of a job as configured, with its ranks and transports, in a temporary folder. Then compares
/// them with the reference, on all of the machine's cores. If the loss is compared, so is an evaluation. Does not touch
/// the job's own output. Throws Error{job, data, plugin, usage} before anything starts.
[[nodiscard]] JobOutcome verify_job(const job::Job& job, const JobSettings& settings);

/// The whole life of a process that is a rank of verify_job(). It runs the rank's steps and, if `evaluates`, an
/// evaluation, and writes the rank's snapshots to [job] output. Returns the exit code.
[[nodiscard]] int record_as_rank(const job::Job& job, const launch::RankContext& context, std::int64_t steps,
                                 bool evaluates, run::RankInputs inputs);

}  // namespace shardrun::verify
