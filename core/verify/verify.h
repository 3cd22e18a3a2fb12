#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "core/partition/partition.h"
#include "core/verify/interpreted.h"
#include "core/verify/meter.h"
#include "core/verify/report.h"
#include "core/verify/selection.h"
#include "core/verify/workload.h"

namespace shardrun::verify {

// Compares a job split over ranks with the float64 device on one rank. Every step is repeated from the run's own
// states, so that rounding does not accumulate: loss and gradients from the states at the start of the run's step, the
// update from the run's own gradients.

/// Runs all ranks in this process, one after the other. Tests partitioner and kernels, not transports.
[[nodiscard]] Report verify_interpreted(const Workload& workload, const partition::Partition& partition,
                                        const InterpretedSettings& settings);

/// Describes the snapshots in a folder.
struct Recorded {
  std::filesystem::path folder;
  std::int64_t ranks = 1;
  std::int64_t steps = 0;
  int threads = 1;  ///< of the reference
  Selection selection = {};
  std::function<bool()> stops = {};  ///< called before every op; true ends the comparison with Error{aborted}
  Meter* meter = nullptr;            ///< shows the progress; may be null
};

/// Compares the snapshots that ranks have written by `write_snapshot`: each rank's at `begin`, `gradients` (if trained)
/// and `end` of every step from 0 to `steps` − 1, and at `evaluation` of the last step if the first rank wrote one. Of
/// predictions each rank's at `begin` of step 0, and at `end` of every step what `write_predictions` wrote.
/// Throws Error{data} if a file is missing or not this job's.
[[nodiscard]] Report verify_snapshots(const Workload& workload, const Recorded& recorded);

}  // namespace shardrun::verify
