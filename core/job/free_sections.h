#pragma once

#include "core/job/job.h"
#include "core/job/raw.h"

namespace shardrun::job {

// Sections whose keys are names, made up by the job file or known to the strategy. Each function throws Error{job} if
// the section is there but empty, or if a line is malformed.

void read_mesh(const RawJob& raw, Job& job);
/// Checks the form only. The strategy knows what the lines mean.
void read_sharding(const RawJob& raw, Job& job);
/// Does not check the axes against the mesh: only the strategy's plan has its axes.
void read_axis_transports(const RawJob& raw, Job& job);

}  // namespace shardrun::job
