#pragma once

#include <chrono>
#include <filesystem>

#include "core/job/job.h"
#include "core/job/raw.h"

namespace shardrun::job {

// [job] output can contain {time}. One process replaces {time} for all ranks when the run begins.

/// Sets `output`, which is runs/NAME by default, and `output_given`. Throws Error{job} if no folder can have
/// the job's name.
void choose_output(const RawJob& raw, Job& job);

/// Throws Error{job} if [job] output has anything but {time} in braces.
void check_output(const Job& job);

/// Throws Error{job} if the job should continue from the newest checkpoint of its own folder,
/// but each run has a new folder.
void require_own_checkpoints(const Job& job);

[[nodiscard]] bool has_placeholder(const Job& job);

/// [job] output with {time} replaced by `time` in UTC, such as 20261122-141503.
[[nodiscard]] std::filesystem::path resolved_output(const Job& job, std::chrono::system_clock::time_point time);

}  // namespace shardrun::job
