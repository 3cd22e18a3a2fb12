#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/data/dataset.h"
#include "core/job/job.h"
#include "core/metrics/summary.h"
#include "core/run/run.h"

namespace shardrun::run {

/// The option of the command `rank` for the checkpoint from which the run continues.
inline constexpr const char* resume_option = "resume";

/// The option of the command `rank` for the time at which the run must end, in seconds since 1970.
inline constexpr const char* ends_by_option = "ends-by";

/// The option of the command `rank` for the launcher's standard input and output, separated by a comma.
inline constexpr const char* standard_option = "standard";

/// Runs a job of several ranks: starts a process for each, shows their progress as one, and merges their reports. A
/// rank that fails ends the job: the summary then has status "failed", the exit code and the root cause. With [job]
/// restarts the ranks may instead be started again, from the newest checkpoint. `dataset` is loaded, and the ranks
/// inherit it; null if the job has no data. `resumed`: the checkpoint from which the run continues; null: none. `words`
/// are appended to the command `rank JOB.ini` of each process.
[[nodiscard]] metrics::Summary run_ranks(const job::Job& job, const RunSettings& settings, const data::Dataset* dataset,
                                         std::shared_ptr<const checkpoint::OpenCheckpoint> resumed,
                                         std::vector<std::string> words = {});

}  // namespace shardrun::run
