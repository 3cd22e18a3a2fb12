#pragma once

#include <cstdint>

#include "core/job/job.h"

namespace shardrun::run {

/// The job with the largest number of ranks, at most `most`, that is in the range of [job] ranks and that strategy,
/// mesh, and this machine's cores, units and memory allow. The smallest number of the range is allowed on any number of
/// cores. Returns the same job if [job] ranks is not a range, or if its number is allowed. If no number is allowed,
/// throws the error about the largest one.
[[nodiscard]] job::Job with_fitting_ranks(const job::Job& job, std::int64_t most);

}  // namespace shardrun::run
