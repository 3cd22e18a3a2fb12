#pragma once

#include <chrono>
#include <filesystem>

#include "core/job/job.h"

namespace shardrun::job {

// [job] output may hold {time}, which one process fills in for all ranks when the run begins.

/// Throws Error{job} where [job] output holds anything else in braces.
void check_output(const Job& job);

[[nodiscard]] bool has_placeholder(const Job& job);

/// [job] output with `time` in place of {time}, as 20261122-141503, UTC.
[[nodiscard]] std::filesystem::path resolved_output(const Job& job, std::chrono::system_clock::time_point time);

}  // namespace shardrun::job
