#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/partition/pipeline.h"

namespace shardrun::forecast {

/// An action of a stage, with its begin and end, in the unit of the costs.
struct TimedAction {
  plan::Action action;
  double begin = 0;
  double end = 0;
};

/// When each action of a pipeline runs. An action starts as soon as its stage is free and its inputs exist.
struct Timeline {
  IdVector<partition::StageId, std::vector<TimedAction>> stages;
  double end = 0;

  /// Idle time of a stage over its working time; 0 if it has no work.
  [[nodiscard]] double bubble(partition::StageId stage) const noexcept;
  /// The share of the time that stages work, on average.
  [[nodiscard]] double working() const noexcept;
};

/// The largest share of the time that stages can work if all chunks take equally long.
struct MostWorking {
  double share = 0;
  std::string formula;  ///< "m / (m + s - 1), m = 8, s = 4"
  std::string source;   ///< the paper and section, such as "arXiv:2104.04473, section 2.2", and remarks
};

/// Computes the share by the papers' formulas. Nothing unless chunk c is on stage c mod s and all stages have as many.
[[nodiscard]] std::optional<MostWorking> most_working(const partition::Pipeline& pipeline);

/// Returns the cost of an action, in any unit.
using ActionCost = std::function<double(const plan::Action& action)>;

/// Returns 1 for a forward or for one of the two parts of a backward, and 2 for a whole backward.
[[nodiscard]] double unit_cost(const plan::Action& action) noexcept;

/// When each action runs if transfers take no time. REQUIRES: the actions are complete and free of deadlock.
[[nodiscard]] Timeline timeline_of(const partition::Pipeline& pipeline, const ActionCost& cost);

/// The largest number of forwards (per microbatch and chunk) that wait for their backward on a stage at the same time.
[[nodiscard]] int most_live_forwards(const std::vector<plan::Action>& actions);

/// Draws a row per stage, with actions as cells whose widths are proportional to their costs, and a legend. If the
/// drawing is wider than `width` columns, first the numbers of microbatches are left out, then the middle of the step.
/// No cell is cut. If there are more than `most_rows` stages, only the first and every n-th are drawn. REQUIRES: width
/// >= 20, most_rows >= 2.
[[nodiscard]] std::string draw(const Timeline& timeline, std::size_t width, std::size_t most_rows);

}  // namespace shardrun::forecast
