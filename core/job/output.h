#pragma once

#include <chrono>
#include <filesystem>

#include "core/job/job.h"
#include "core/job/raw.h"

namespace shardrun::job {

// [job] output may contain {time}. One process fills it in for all ranks when the run begins.

/// Completes `output`, by default runs/NAME, and `output_given`. Throws Error{job} if no folder can have the job's
/// name.
void choose_output(const RawJob& raw, Job& job);

/// Throws Error{job} if [job] output has anything else in braces.
void check_output(const Job& job);

/// Throws Error{job} if the job is to go on from the newest checkpoint of its own folder, and that is a new one for
/// each run.
void require_own_checkpoints(const Job& job);

[[nodiscard]] bool has_placeholder(const Job& job);

/// [job] output with {time} replaced by `time`, as 20261122-141503, UTC.
[[nodiscard]] std::filesystem::path resolved_output(const Job& job, std::chrono::system_clock::time_point time);

}  // namespace shardrun::job
