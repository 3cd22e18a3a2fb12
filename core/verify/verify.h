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

// A job split over ranks against the float64 device on one. Every step is repeated from the run's own states, so that
// rounding does not pile up: loss and gradients from the states that the run had as the step began; the update from the
// run's own gradients.

/// All ranks in this process, one after the other: proves partitioner and kernels, not transports.
[[nodiscard]] Report verify_interpreted(const Workload& workload, const partition::Partition& partition,
                                        const InterpretedSettings& settings);

/// Whose snapshots are in a folder.
struct Recorded {
  std::filesystem::path folder;
  std::int64_t ranks = 1;
  std::int64_t steps = 0;
  int threads = 1;  ///< of the reference
  Selection selection = {};
  std::function<bool()> stops = {};  ///< asked before every op: true ends the comparison with Error{aborted}
  Meter* meter = nullptr;            ///< shows how far it is; may be null
};

/// What the ranks of a run have left in a folder by `write_snapshot`: each at `begin`, `gradients` (where it is
/// trained) and `end` of every step from 0 to `steps` − 1; and at `evaluation` of the last, which is compared where the
/// first rank wrote it. Throws Error{data} where a file is missing or not this job's.
[[nodiscard]] Report verify_snapshots(const Workload& workload, const Recorded& recorded);

}  // namespace shardrun::verify
