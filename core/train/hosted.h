#pragma once

#include <functional>

#include "core/job/job.h"
#include "core/launch/world.h"
#include "core/metrics/summary.h"
#include "core/train/run.h"

namespace shardrun::train {

// A job whose ranks another launcher has started: each process is one of them, and starts none. They meet at
// MASTER_ADDR and MASTER_PORT where those are set and all have SHARDRUN_TOKEN (or their user's, at a loopback address);
// else a transport of the job that can (sr_transport::share_first) tells them of a place that rank 0 has chosen.
//
// Both throw Error{usage} where `world` is not one for this job, and Error{job, data, plugin} as run_job() does.

/// Rank 0, whose process also has the launcher's part. What run_job() says holds for its summary.
[[nodiscard]] metrics::Summary run_hosted_first(const job::Job& job, const launch::World& world,
                                                const RunSettings& settings);

/// Any other rank; returns its exit code. `on_join`: all ranks are there; before, there is nothing to save.
[[nodiscard]] int run_hosted_other(const job::Job& job, const launch::World& world, const RunSettings& settings,
                                   const std::function<void()>& on_join);

}  // namespace shardrun::train
