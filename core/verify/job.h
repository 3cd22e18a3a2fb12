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
  metrics::Summary summary;  ///< with the cause if the run itself failed
  Report report;             ///< empty if the run failed
};

struct JobSettings {
  std::int64_t steps = 1;
  std::vector<std::string> tensors = {};  ///< globs of tensors to compare; empty: all
  /// Runs all ranks in this process, one after the other, on the first rank's unit, without transports and launcher.
  bool in_process = false;
  run::RunSettings run = {};
};

/// Runs the first steps of a job in a temporary folder, with the job's ranks and transports. Then compares them with
/// the reference, which uses all cores of the machine. If the loss is compared, an evaluation is, too. Leaves the job's
/// own output unchanged. Throws Error before ranks start if the job cannot run, and Error{data} later without prompts.
[[nodiscard]] JobOutcome verify_job(const job::Job& job, const JobSettings& settings);

/// Runs a process that is one rank of verify_job(): its steps and, if `evaluates`, an evaluation. Writes the rank's
/// snapshots to [job] output. Returns the exit code.
[[nodiscard]] int record_as_rank(const job::Job& job, const launch::RankContext& context, std::int64_t steps,
                                 bool evaluates, run::RankInputs inputs);

}  // namespace shardrun::verify
