#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/verify/gather.h"
#include "core/verify/reference.h"
#include "core/verify/report.h"
#include "core/verify/selection.h"

namespace shardrun::verify {

/// Tolerances for float32 against float64: the root mean square of the difference, divided by the tensor's.
inline constexpr double gradient_tolerance = 1e-5;  ///< loss, gradients and outputs: through the whole model
/// The same in mixed precision, where the reference rounds activations and their gradients to bf16 as the run does. A
/// number close to the middle between two bf16 numbers is rounded one way in float64 and may be rounded the other way
/// in the run; ranks that split a sum round their parts as well. Measured over the shipped models and strategies: up to
/// 6e-3 for gradients of one layer, 1.1e-2 of 24 layers, and 2e-3 for the loss of 21 numbers.
inline constexpr double mixed_gradient_tolerance = 2e-2;
inline constexpr double mixed_loss_tolerance = 4e-3;
/// For one step of the optimizer from the same gradients, relative to the change that it makes. In addition the
/// rounding of the state itself is allowed: `parameter_roundings` or `state_roundings` times half a unit in the last
/// place. A bf16 parameter has to be exactly its rounded master.
inline constexpr double update_tolerance = 1e-6;
inline constexpr double parameter_roundings = 1;  ///< subtraction of the change
inline constexpr double state_roundings = 3;      ///< decay to float, product and sum

/// A gradient counts as zero if its root mean square is below this share of the largest of any gradient; the rest of it
/// is rounding of float64. Its float32 version is judged relative to `zero_floor` times that largest one. Measured for
/// gradients that cancel over 65, 500 and 5000 classes: 6e-7, 3e-6 and 3e-5 of it. No other gradient has a floor.
inline constexpr double zero_share = 1e-12;
inline constexpr double zero_floor = 3;

/// Compares a run moment by moment. Repeats every step from the run's own states.
class Comparison {
 public:
  /// REQUIRES: the objects that `workload` points to outlive this. `ranks`: of the run. `stops`, `meter`: as of
  /// Reference.
  Comparison(const Workload& workload, std::int64_t ranks, int threads, Selection selection = {},
             std::function<bool()> stops = {}, Meter* meter = nullptr);

  /// The work that a meter counts for so many steps, and for an evaluation if there is one.
  [[nodiscard]] std::int64_t work(std::int64_t steps) const { return reference_.work(steps); }

  /// Compares the ranks' snapshots. Moments must come in order: for each step from 0 begin, gradients (if trained),
  /// end; then, once, evaluation (if there is one).
  void add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of);

  [[nodiscard]] const Report& report() const noexcept { return report_; }

 private:
  void begin(std::int64_t step, const Gathered& run);
  void gradients(std::int64_t step, const Gathered& run);
  void end(std::int64_t step, const Gathered& run);

  /// Root mean squares that a difference is relative to.
  struct Scale {
    double expected = 0;  ///< of the expected values
    double judged = 0;    ///< including the floor
  };

  void compare(graph::StateId state, What what, std::int64_t step, const Whole& run, Scale scale, double tolerance);
  void compare_metric(const char* name, What what, std::int64_t step, const Gathered& run, double tolerance);
  /// The loss, and the counts that divide it if the model has some.
  void compare_losses(What what, std::int64_t step, const Gathered& run);
  void load(graph::StateId state, const Whole& run);
  [[nodiscard]] double root_mean_square(graph::StateId state);  ///< of the reference's state
  [[nodiscard]] Scale scale_of_update(graph::StateId state);

  const Workload workload_;
  const bool mixed_;
  const std::int64_t ranks_;
  const Selection selection_;
  Reference reference_;
  std::vector<graph::StateId> gradients_;
  IdVector<graph::StateId, std::vector<double>> before_;  ///< each state at the start of the step
  Report report_;
};

}  // namespace shardrun::verify
