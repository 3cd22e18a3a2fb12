#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/verify/gather.h"
#include "core/verify/reference.h"
#include "core/verify/report.h"
#include "core/verify/selection.h"

namespace shardrun::verify {

/// How often at least each tensor is computed with rounded results: one time says little of a single number.
inline constexpr std::int64_t least_rounded = 3;

/// Compares a run moment by moment. Repeats every step from the run's own states.
class Comparison {
 public:
  /// REQUIRES: the objects that `workload` points to outlive this. `ranks`, `steps`: of the run. `stops`, `meter`: as
  /// of Reference.
  Comparison(const Workload& workload, std::int64_t ranks, std::int64_t steps, int threads, Selection selection = {},
             std::function<bool()> stops = {}, Meter* meter = nullptr);

  /// The work that a meter counts.
  [[nodiscard]] std::int64_t work() const { return (1 + rounded_) * reference_.work(steps_); }

  /// Compares the ranks' snapshots. Moments must come in order: for each step from 0 begin, gradients (if trained),
  /// end; then, once, evaluation (if there is one).
  void add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of);

  [[nodiscard]] const Report& report() const noexcept { return report_; }

 private:
  void begin(std::int64_t step, const Gathered& run);
  void gradients(std::int64_t step, const Gathered& run);
  void end(std::int64_t step, const Gathered& run);

  using Calls = std::function<void()>;
  /// Has the reference compute, several times with rounded results, and then as exactly as it can.
  void compute(const Calls& calls);
  /// `exact`: whether the run must have the same values.
  void compare(graph::StateId state, What what, std::int64_t step, const Gathered& run, bool exact = false);
  /// The loss, and the counts that divide it if the model has some.
  void compare_losses(What what, std::int64_t step, const Gathered& run);
  [[nodiscard]] std::vector<std::vector<double>> states();  ///< all of the reference's, by number
  void load(graph::StateId state, std::span<const double> values);

  const Workload workload_;
  const std::int64_t ranks_;
  const std::int64_t steps_;
  const std::int64_t rounded_;  ///< how often each step is computed with rounded results
  const Selection selection_;
  Reference reference_;
  IdVector<graph::StateId, Size> latest_;     ///< what rounding made in the latest computation
  IdVector<graph::StateId, Size> roundings_;  ///< and at most in all that was compared
  Report report_;
};

}  // namespace shardrun::verify
