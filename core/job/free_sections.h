#pragma once

#include "core/job/job.h"
#include "core/job/raw.h"

namespace shardrun::job {

// The sections whose keys are names that the job file makes up, or that the strategy knows. Each throws Error{job} for
// a section that is there and empty, and for a line that cannot be what the section is for.

void read_mesh(const RawJob& raw, Job& job);
/// What the lines mean is the strategy's matter, so long as they can be written down.
void read_sharding(const RawJob& raw, Job& job);
/// Whether the axes are the mesh's is known once the strategy has said which those are.
void read_axis_transports(const RawJob& raw, Job& job);

}  // namespace shardrun::job
