#pragma once

#include <chrono>
#include <optional>

#include "core/partition/program.h"
#include "core/runtime/executor.h"

namespace shardrun::train {

/// One step on this rank. Times are in seconds.
struct StepMeasure {
  double duration = 0;
  double exposed = 0;  ///< communication for which the rank waited
  double hidden = 0;   ///< communication while the rank computed
  double input = 0;    ///< reading samples
  double late = 0;     ///< by which transfers began late
  partition::SentBytes sent;
};

/// Measures a step from the construction to end(). `executor` outlives this object.
class StepMeter {
 public:
  explicit StepMeter(const runtime::Executor& executor);
  /// Call it when all work of the step has been enqueued. Bytes sent from now on belong to another step.
  void all_is_given();
  /// Call it when the step before has ended only now: this step's time begins now.
  void begin_again();
  [[nodiscard]] double seconds() const;  ///< since the step began
  [[nodiscard]] StepMeasure end() const;

 private:
  const runtime::Executor& executor_;
  partition::SentBytes before_;               ///< sent before the step
  std::optional<partition::SentBytes> sent_;  ///< what the step has sent; nothing before all_is_given()
  double exposed_ = 0;
  double hidden_ = 0;
  double input_ = 0;
  double late_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace shardrun::train
