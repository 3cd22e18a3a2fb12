#pragma once

#include <cstdint>
#include <vector>

#include "core/verify/gather.h"
#include "core/verify/reference.h"
#include "core/verify/report.h"

namespace shardrun::verify {

/// What float32 may differ by from float64: the root mean square of the difference over that of the tensor.
inline constexpr double gradient_tolerance = 1e-5;  ///< loss and gradients: through all of the model
inline constexpr double update_tolerance = 1e-6;    ///< one step of the optimizer, from the same gradients

/// A gradient that cancels leaves rounding in float32, which is measured by the largest root mean square of any
/// gradient. Tensors below `gradient_floor` of that are judged as if they had so much: what is wrong in one that is not
/// zero goes unnoticed only below gradient_tolerance · gradient_floor.
inline constexpr double gradient_floor = 1e-2;
/// Below this share a gradient is zero, and what is left of it rounding of float64. Where thousands of terms cancel
/// float32 leaves up to 1e-5 of the largest, so that these tensors are judged as if they had `zero_floor`.
inline constexpr double zero_share = 1e-11;
inline constexpr double zero_floor = 10;

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

  /// `scale`: the root mean square that a difference's is relative to.
  void compare(std::size_t state, What what, std::int64_t step, const Whole& run, double scale, double tolerance);
  void compare_metric(const char* name, What what, std::int64_t step, const Gathered& run, double tolerance);
  void load(std::size_t state, const Whole& run);
  [[nodiscard]] double root_mean_square(std::size_t state);  ///< of the reference's

  const Workload workload_;
  const std::int64_t ranks_;
  Reference reference_;
  std::vector<std::size_t> gradients_;  ///< states
  std::vector<double> sizes_before_;    ///< root mean square of each state, as the step began
  Report report_;
};

}  // namespace shardrun::verify
