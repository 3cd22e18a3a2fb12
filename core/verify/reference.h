#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/runtime/executor.h"
#include "core/verify/workload.h"

namespace shardrun::verify {

/// A workload on one rank, in float64.
class Reference {
 public:
  /// `stops`: asked before every op; true ends what is computed with Error{aborted}.
  /// REQUIRES: what `workload` points to outlives this.
  Reference(const Workload& workload, int threads, std::function<bool()> stops = {});

  /// Every state's first values.
  void initialize();
  /// A whole state, to read or to overwrite.
  [[nodiscard]] std::span<double> state(graph::StateId id);

  /// Loss and gradients of a step's batch.
  void differentiate(std::int64_t step);
  /// The step's update from the gradients that are there, or the iteration.
  void update(std::int64_t step);
  /// The loss over the validation part.
  void evaluate();

 private:
  void run(const Call& call);

  const Workload workload_;
  runtime::Executor executor_;
};

}  // namespace shardrun::verify
