#pragma once

#include <functional>

#include "core/job/job.h"
#include "core/launch/world.h"
#include "core/metrics/summary.h"
#include "core/run/run.h"

namespace shardrun::run {

// A job whose ranks another launcher has started: each process is one rank and starts none. The ranks meet at
// MASTER_ADDR and MASTER_PORT if those are set and all ranks have SHARDRUN_TOKEN (or their user's token, at a loopback
// address). Otherwise rank 0 chooses the address, and a transport of the job tells the other ranks
// (sr_transport::share_first).
//
// Both throw Error{usage} if `world` does not fit the job, and Error{job, data, plugin} as run_job() does.

/// Rank 0. Its process also does the launcher's work. Calls `tell` with the summary, as run_job(), and returns its
/// result. The other ranks end only after that: some launchers end all processes of a world once one has ended with an
/// error.
[[nodiscard]] int run_hosted_first(const job::Job& job, const launch::World& world, const RunSettings& settings,
                                   const std::function<int(const metrics::Summary&)>& tell);

/// Any other rank; returns its exit code. `on_join` is called when all ranks are there; before, there is nothing to
/// save.
[[nodiscard]] int run_hosted_other(const job::Job& job, const launch::World& world, const RunSettings& settings,
                                   const std::function<void()>& on_join);

}  // namespace shardrun::run
