#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "core/job/job.h"
#include "core/launch/rank.h"
#include "core/launch/store_host.h"
#include "core/launch/world.h"
#include "core/metrics/summary.h"
#include "core/run/run.h"

namespace shardrun::run {

// A job whose ranks another launcher has started: each process is one rank and starts no others. The ranks meet at
// MASTER_ADDR and MASTER_PORT if those are set and all ranks have SHARDRUN_TOKEN (or, at a loopback address, their
// user's token). Otherwise rank 0 chooses the address, and a transport of the job tells the other ranks
// (sr_transport::share_first).
//
// Both functions throw Error{usage} if `world` does not fit the job, and Error{job, data, plugin} as run_job() does.

/// Runs rank 0, whose process also does the launcher's work. Calls `tell` with the summary, like run_job(), and returns
/// its result. The other ranks end only after that: some launchers end all processes of a world once one has ended with
/// an error.
[[nodiscard]] int run_hosted_first(const job::Job& job, const launch::World& world, const RunSettings& settings,
                                   const std::function<int(const metrics::Summary&)>& tell);

/// Runs any other rank; returns its exit code. `on_join` is called when all ranks have joined; before that, there is
/// nothing to save.
[[nodiscard]] int run_hosted_other(const job::Job& job, const launch::World& world, const RunSettings& settings,
                                   const std::function<void()>& on_join);

// Parts of the above, for other commands whose ranks another launcher has started.

/// How many ranks share this machine; 0 if unknown before they meet. Ranks that meet at a loopback address share one.
[[nodiscard]] std::int64_t ranks_here(const launch::World& world);

/// Settings for how rank 0's process listens and waits, without callbacks. `silence`: how long a rank may be silent
/// before it counts as lost. `job`: see launch::Rank.
[[nodiscard]] launch::HostSettings host_settings(const launch::World& world, const launch::Invitation& invitation,
                                                 std::chrono::milliseconds silence, std::string job);

[[nodiscard]] launch::RankContext hosted_context(const launch::World& world, const launch::Invitation& invitation,
                                                 std::chrono::milliseconds silence);

/// Raises the limit of open files as far as possible. If that is not enough, connections fail with an error.
void raise_limits(const launch::World& world);

}  // namespace shardrun::run
