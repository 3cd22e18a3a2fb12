#pragma once

#include <filesystem>

#include "core/job/job.h"
#include "core/launch/rank.h"
#include "core/task/run.h"

namespace shardrun::task {

/// Runs a job of several ranks: starts a process for each, shows their progress as one, and merges what they report.
/// A rank that fails ends the job: the summary then has status "failed", the exit code and the root cause.
[[nodiscard]] metrics::Summary run_ranks(const job::Job& job, const RunSettings& settings);

/// What a process that was started so does. Returns its exit code; the launcher is told of errors, and nothing is
/// thrown.
[[nodiscard]] int run_as_rank(const job::Job& job, launch::RankContext context, bool profile);

}  // namespace shardrun::task
