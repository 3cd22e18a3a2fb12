#pragma once

#include <cstdint>
#include <vector>

#include "core/verify/gather.h"
#include "core/verify/reference.h"
#include "core/verify/report.h"
#include "core/verify/selection.h"

namespace shardrun::verify {

/// What float32 may differ by from float64: the root mean square of the difference over that of the tensor.
inline constexpr double gradient_tolerance = 1e-5;  ///< loss and gradients: through all of the model
/// One step of the optimizer, from the same gradients: of the change that it makes, and beside it what rounding takes
/// from the state itself, `parameter_roundings` or `state_roundings` times half of a last place.
inline constexpr double update_tolerance = 1e-6;
inline constexpr double parameter_roundings = 1;  ///< the change is subtracted at once
inline constexpr double state_roundings = 3;      ///< decay to float, product and sum

/// Below this share of the largest root mean square of any gradient a gradient is zero, and what is left of it rounding
/// of float64. What float32 leaves of it is judged by `zero_floor` times that largest one: of a gradient that cancels
/// over 65, 500 and 5000 classes 6e-7, 3e-6 and 3e-5 of it were measured. No other gradient has a floor.
inline constexpr double zero_share = 1e-12;
inline constexpr double zero_floor = 3;

/// Follows a run from moment to moment, and repeats every step from the run's own states.
class Comparison {
 public:
  /// REQUIRES: what `workload` points to outlives this. `ranks`: of the run. `stops`, `meter`: as of Reference.
  Comparison(const Workload& workload, std::int64_t ranks, int threads, Selection selection = {},
             std::function<bool()> stops = {}, Meter* meter = nullptr);

  /// What a meter counts for so many steps, and for an evaluation where there is one.
  [[nodiscard]] std::int64_t work(std::int64_t steps) const { return reference_.work(steps); }

  /// Compares what the ranks hold. Moments come in their order, of each step (from 0) all: begin, gradients (of what is
  /// trained), end; then, once, evaluation (where something is evaluated).
  void add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of);

  [[nodiscard]] const Report& report() const noexcept { return report_; }

 private:
  void begin(std::int64_t step, const Gathered& run);
  void gradients(std::int64_t step, const Gathered& run);
  void end(std::int64_t step, const Gathered& run);

  /// Root mean squares that a difference's is relative to.
  struct Scale {
    double expected = 0;  ///< of what is expected alone
    double judged = 0;    ///< with its floor
  };

  void compare(std::size_t state, What what, std::int64_t step, const Whole& run, Scale scale, double tolerance);
  void compare_metric(const char* name, What what, std::int64_t step, const Gathered& run, double tolerance);
  void load(std::size_t state, const Whole& run);
  [[nodiscard]] double root_mean_square(std::size_t state);  ///< of the reference's
  [[nodiscard]] Scale scale_of_update(std::size_t state);

  const Workload workload_;
  const std::int64_t ranks_;
  const Selection selection_;
  Reference reference_;
  std::vector<std::size_t> gradients_;       ///< states
  std::vector<std::vector<double>> before_;  ///< each state as the step began
  Report report_;
};

}  // namespace shardrun::verify
