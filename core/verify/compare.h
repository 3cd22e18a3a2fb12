#pragma once

#include <cstdint>
#include <vector>

#include "core/verify/gather.h"
#include "core/verify/reference.h"
#include "core/verify/report.h"

namespace shardrun::verify {

/// What float32 may differ by from float64, as norms of tensors.
inline constexpr double gradient_tolerance = 1e-5;  ///< loss and gradients: through all of the model
inline constexpr double update_tolerance = 1e-6;    ///< one step of the optimizer, from the same gradients

/// Where the true gradient is zero (the bias of attention's keys, which softmax does not see), float32 leaves
/// rounding. Tensors below this share of the largest root mean square of any gradient are judged as if they had so
/// much. A gradient that is not zero is wrong unnoticed only where it is below the tolerance's share of that.
inline constexpr double gradient_floor = 1e-2;

/// Follows a run from moment to moment, and repeats every step from the run's own states.
class Comparison {
 public:
  /// REQUIRES: what `workload` points to outlives this. `ranks`: of the run.
  Comparison(const Workload& workload, std::int64_t ranks, int threads);

  /// Compares what the ranks hold. Moments come in their order, of each step (from 0) all: begin, gradients (of what is
  /// trained), end; then, once, evaluation (where something is evaluated).
  void add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of);

  [[nodiscard]] const Report& report() const noexcept { return report_; }

 private:
  void begin(std::int64_t step, const Gathered& run);
  void gradients(std::int64_t step, const Gathered& run);
  void end(std::int64_t step, const Gathered& run);

  /// `scale`: what a difference is relative to.
  void compare(std::size_t state, What what, std::int64_t step, const Whole& run, double scale, double tolerance);
  void compare_metric(const char* name, What what, std::int64_t step, const Gathered& run, double tolerance);
  void load(std::size_t state, const Whole& run);
  [[nodiscard]] double norm_of(std::size_t state);

  const Workload workload_;
  const std::int64_t ranks_;
  Reference reference_;
  std::vector<double> norms_before_;  ///< of each state, as the step began
  Report report_;
};

}  // namespace shardrun::verify
