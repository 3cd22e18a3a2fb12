#pragma once

#include <chrono>

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
  [[nodiscard]] StepMeasure end() const;

 private:
  const runtime::Executor& executor_;
  const partition::SentBytes sent_;
  const double exposed_;
  const double hidden_;
  const std::chrono::steady_clock::time_point begin_;
};

}  // namespace shardrun::train
