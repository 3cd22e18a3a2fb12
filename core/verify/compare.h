#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/verify/reference.h"
#include "core/verify/report.h"
#include "core/verify/selection.h"
#include "core/verify/snapshot.h"

namespace shardrun::verify {

/// A whole state, assembled from the ranks' parts.
struct Whole {
  std::vector<double> values;       ///< zero where no rank has the element
  std::vector<std::int32_t> first;  ///< for each element, the first rank that has it; -1: none
  std::vector<mesh::Box> boxes;     ///< the part of each rank; empty if the rank has no part
};

using Gathered = IdVector<graph::StateId, std::optional<Whole>>;

/// Returns a rank's snapshot at the moment to gather. Called for one rank after the other.
using SnapshotOf = std::function<Snapshot(std::int64_t rank)>;

/// The largest number of times that a step is computed with rounded results. A step is computed again only while a
/// difference exceeds the limit, and none exceeds it by more than this factor.
inline constexpr int most_rounded = 16;

/// Compares a run with the reference, moment by moment. The reference repeats every step from the run's own states.
class Comparison {
 public:
  /// `ranks`: the number of the run's ranks. `stops`, `meter`: as in the constructor of Reference. REQUIRES: the
  /// objects to which `workload` points outlive this object.
  Comparison(const Workload& workload, std::int64_t ranks, int threads, Selection selection = {},
             std::function<bool()> stops = {}, Meter* meter = nullptr);

  /// The work that the meter expects for `steps` steps and for an evaluation, if each of them is computed only twice.
  [[nodiscard]] std::int64_t work(std::int64_t steps) const { return 2 * reference_.work(steps); }

  /// Compares the snapshots of all ranks at a moment. Calls must come in this order: for each step from 0 on, begin,
  /// gradients (if the run trains) and end; after the last step evaluation, if there is one.
  void add(std::int64_t step, Moment moment, const SnapshotOf& snapshot_of);

  [[nodiscard]] const Report& report() const noexcept { return report_; }

 private:
  using Values = std::map<graph::StateId, std::vector<double>>;
  using Compared = std::vector<std::pair<graph::StateId, What>>;

  void begin(std::int64_t step, const Gathered& run);
  /// Compares the states that the reference's `calls` leave with the run's. `compute`: makes the calls.
  void judge(std::int64_t step, Moment moment, const Gathered& run, const std::vector<Call>& calls,
             const std::function<void()>& compute);
  /// The states that the run has at this moment and that are selected.
  [[nodiscard]] Compared compared_at(Moment moment, const Gathered& run) const;
  /// The run's float32 master values of a parameter in mixed precision; null for other states.
  [[nodiscard]] const Whole* master_of(graph::StateId state, const Gathered& run) const;
  /// Repeats the calls with rounded results until `is_settled` returns true, at most `most_rounded` times. `before`:
  /// the values, before the calls, of all states that they change.
  void make_rounded(const std::function<void()>& compute, const Values& before,
                    const std::function<bool()>& is_settled);
  /// Compares the run's values of a state with the reference's. `exact`: whether they must be equal.
  [[nodiscard]] Difference difference(graph::StateId state, What what, std::int64_t step, const Gathered& run,
                                      bool exact);
  /// The present values of the states that `calls` write, and of the written states that last between steps, which the
  /// reference rounds after an update.
  [[nodiscard]] Values changed_by(const std::vector<Call>& calls) const;
  void load(const Values& values);

  const Workload workload_;
  const std::int64_t ranks_;
  const Selection selection_;
  Reference reference_;
  IdVector<graph::StateId, Size> latest_;     ///< the error that rounding makes in the latest calls
  IdVector<graph::StateId, Size> roundings_;  ///< the largest error that rounding has made in all calls so far
  Report report_;
};

}  // namespace shardrun::verify
