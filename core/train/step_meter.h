#pragma once

#include <chrono>
#include <optional>

#include "core/partition/program.h"
#include "core/runtime/executor.h"

namespace shardrun::train {

/// One step on this rank. Times are in seconds.
struct StepMeasure {
  double duration = 0;
  double exposed = 0;  ///< communication that the rank waited for
  double hidden = 0;   ///< communication while it computed
  partition::SentBytes sent;
};

/// Measures a step from the construction to end(). `executor` outlives this.
class StepMeter {
 public:
  explicit StepMeter(const runtime::Executor& executor);
  /// All work of the step was given to the device. Bytes sent from now on belong to another step.
  void all_is_given();
  /// The step before has ended only now.
  void begin_again();
  [[nodiscard]] double seconds() const;  ///< so far
  [[nodiscard]] StepMeasure end() const;

 private:
  const runtime::Executor& executor_;
  partition::SentBytes before_;               ///< sent before the step
  std::optional<partition::SentBytes> sent_;  ///< by the step
  double exposed_ = 0;
  double hidden_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace shardrun::train
