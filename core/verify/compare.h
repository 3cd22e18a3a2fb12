#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/verify/gather.h"
#include "core/verify/reference.h"
#include "core/verify/report.h"
#include "core/verify/selection.h"

namespace shardrun::verify {

/// How often at most a step is computed with rounded results. Once is enough where no difference is little beyond the
/// limit.
inline constexpr int most_rounded = 16;

/// Compares a run moment by moment. Repeats every step from the run's own states.
class Comparison {
 public:
  /// REQUIRES: the objects that `workload` points to outlive this. `ranks`: of the run. `stops`, `meter`: as of
  /// Reference.
  Comparison(const Workload& workload, std::int64_t ranks, int threads, Selection selection = {},
             std::function<bool()> stops = {}, Meter* meter = nullptr);

  /// The work that a meter counts for so many steps, and for an evaluation if there is one: each is computed twice.
  [[nodiscard]] std::int64_t work(std::int64_t steps) const { return 2 * reference_.work(steps); }

  /// Compares the ranks' snapshots. Moments must come in order: for each step from 0 begin, gradients (if trained),
  /// end; then, once, evaluation (if there is one).
  void add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of);

  [[nodiscard]] const Report& report() const noexcept { return report_; }

 private:
  using Compared = std::vector<std::pair<graph::StateId, What>>;

  void begin(std::int64_t step, const Gathered& run);
  /// Has the reference make the calls, and compares what they leave.
  void judge(std::int64_t step, Moment moment, const Gathered& run, const std::function<void()>& calls);
  /// Compares the states that the run has at this moment.
  [[nodiscard]] Compared compared_at(Moment moment, const Gathered& run) const;
  /// The run's float32 values of a parameter in mixed precision; null of other states.
  [[nodiscard]] const Whole* master_of(graph::StateId state, const Gathered& run) const;
  /// Makes the calls again, with rounded results, until `is_settled`, at most `most_rounded` times.
  void make_rounded(const std::function<void()>& calls, const std::vector<std::vector<double>>& before,
                    const std::function<bool()>& is_settled);
  /// Compares a state's values in the run with those in the reference. `exact`: whether they must be the same.
  [[nodiscard]] Difference difference(graph::StateId state, What what, std::int64_t step, const Gathered& run,
                                      bool exact);
  [[nodiscard]] std::vector<std::vector<double>> states();  ///< all of the reference's, by number
  void load(const std::vector<std::vector<double>>& values);
  void load(graph::StateId state, std::span<const double> values);

  const Workload workload_;
  const std::int64_t ranks_;
  const Selection selection_;
  Reference reference_;
  IdVector<graph::StateId, Size> latest_;     ///< what rounding does in the latest calls
  IdVector<graph::StateId, Size> roundings_;  ///< and at most in all that was compared
  Report report_;
};

}  // namespace shardrun::verify
