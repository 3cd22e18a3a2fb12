#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "core/job/job.h"
#include "core/partition/partition.h"
#include "core/runtime/interpreter.h"
#include "core/task/compile.h"
#include "core/verify/report.h"
#include "core/verify/workload.h"

namespace shardrun::verify {

// A job split over ranks against the float64 device on one. Every step is repeated from the run's own states, so that
// rounding does not pile up: loss and gradients from the states that the run had as the step began; the update from the
// run's own gradients.

struct InterpretedSettings {
  std::string_view device = "cpu";  ///< of the ranks
  int threads = 1;                  ///< of each rank, and of the reference
  std::int64_t steps = 2;
  std::optional<runtime::Fault> fault = std::nullopt;
};

/// All ranks in this process, one after the other: proves partitioner and kernels, not transports.
[[nodiscard]] Report verify_interpreted(const Workload& workload, const partition::Partition& partition,
                                        const InterpretedSettings& settings);

/// What the ranks of a run have left in `folder` by `write_snapshot`: each at `begin`, `gradients` (task train) and
/// `end` of every step from 0 to `steps` − 1; and at `evaluation` of the last, which is compared where the first rank
/// wrote it. Throws Error{data} where a file is missing or not this job's.
[[nodiscard]] Report verify_snapshots(const std::filesystem::path& folder, const job::Job& job,
                                      const task::Compiled& compiled, std::int64_t steps);

}  // namespace shardrun::verify
