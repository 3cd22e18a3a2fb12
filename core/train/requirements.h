#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"

namespace shardrun::train {

/// What must hold before a process starts or the output folder is touched; `ranks_here`: how many of the job's ranks
/// share this machine, 0 where that is not known yet. Throws Error{job}. Returns lines to show first: ranks that are
/// idle, and how [cluster] memory differs from what is needed and from what the machine has.
std::vector<std::string> require_runnable(const job::Job& job, const compile::Compiled& compiled,
                                          std::int64_t ranks_here);

/// The part of require_runnable that is about memory, for ranks that learn only from each other how many share a
/// machine. Throws Error{job}.
void require_memory_here(const job::Job& job, const compile::Compiled& compiled, std::int64_t ranks_here);

/// Reads the job's data through (Dataset::check), on all cores that this process may use. Called before the output
/// folder is touched: once for all ranks that are started here, and by the first rank of each machine (by every rank,
/// where the launcher does not number those of a machine). Throws Error{data}.
void check_data(const compile::Compiled& compiled);

/// Makes of the job's data what training reads (Dataset::load), behind check_data. Throws Error{io}.
void load_data(const compile::Compiled& compiled);

/// As require_runnable, for ranks that are started here. Throws Error{job} where a transport wants another launcher's.
void require_launchable(const job::Job& job, const compile::Compiled& compiled);

}  // namespace shardrun::train
