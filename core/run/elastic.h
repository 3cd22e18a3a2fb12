#pragma once

#include <cstdint>

#include "core/job/job.h"

namespace shardrun::run {

/// The job with the largest number of ranks, at most `most`, that is in the range of [job] ranks, and that strategy,
/// mesh, and the cores, units and memory of this machine allow. The least of the range is allowed with any number of
/// cores.
/// The same job if [job] ranks is no range, or if its ranks are allowed. Throws the error about the largest number if
/// none is allowed.
[[nodiscard]] job::Job with_fitting_ranks(const job::Job& job, std::int64_t most);

}  // namespace shardrun::run
