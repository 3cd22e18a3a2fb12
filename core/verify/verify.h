#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "core/partition/partition.h"
#include "core/runtime/interpreter.h"
#include "core/verify/meter.h"
#include "core/verify/report.h"
#include "core/verify/selection.h"
#include "core/verify/snapshot.h"
#include "core/verify/workload.h"

namespace shardrun::verify {

struct InterpretedSettings {
  std::string_view device = "cpu";  ///< the device of the ranks
  int threads = 1;                  ///< threads of each rank and of the reference
  std::int64_t steps = 2;
  std::optional<runtime::Fault> fault = std::nullopt;
  const plugins::Hooks* hooks = nullptr;  ///< hooks for runtime::Executor; null: none
};

/// Called between the calls of a step, at every moment of the workload. Steps count from 0.
using AtMoment = std::function<void(std::int64_t step, Moment moment, runtime::Interpreter& ranks)>;

/// Runs a workload's first steps, and an evaluation after the last, on all ranks in this process.
void interpret(const Workload& workload, const partition::Partition& partition, const InterpretedSettings& settings,
               const AtMoment& at_moment);

// Compares a job on several ranks with a float64 computation on one rank. Every step is repeated from the run's own
// states, so that rounding errors do not add up over steps: loss and gradients are computed from the run's states at
// the start of the step, the update from the run's gradients.

/// Runs all ranks in this process, one after the other, and compares their states. This tests the partitioner and the
/// kernels, but not the transports.
[[nodiscard]] Report verify_interpreted(const Workload& workload, const partition::Partition& partition,
                                        const InterpretedSettings& settings);

/// Snapshots in a folder, and how to compare them.
struct Recorded {
  std::filesystem::path folder;
  std::int64_t ranks = 1;
  std::int64_t steps = 0;
  int threads = 1;  ///< threads of the reference
  Selection selection = {};
  std::function<bool()> stops = {};  ///< called before every op; true ends the comparison with Error{aborted}
  Meter* meter = nullptr;            ///< shows the progress; may be null
};

/// Compares snapshots that ranks have written with write_snapshot(). Each rank needs one at `begin`, `gradients` (if
/// the run trains) and `end` of every step from 0 to `steps` - 1. The evaluation after the last step is compared if the
/// first rank wrote one. Predictions need only `begin` of step 0, and what write_predictions() or
/// SequenceRecorder::write() wrote at `end` of every step. Throws as read_snapshot() does.
[[nodiscard]] Report verify_snapshots(const Workload& workload, const Recorded& recorded);

}  // namespace shardrun::verify
