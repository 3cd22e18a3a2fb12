#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/partition/pipeline.h"

namespace shardrun::forecast {

/// An action of a stage, with its time in the unit of the costs.
struct TimedAction {
  plan::Action action;
  double begin = 0;
  double end = 0;
};

/// A pipeline's actions in time. Each starts as soon as its stage is free and its inputs are there.
struct Timeline {
  IdVector<partition::StageId, std::vector<TimedAction>> stages;
  double end = 0;

  /// Idle time of a stage over its working time; 0 if it has no work.
  [[nodiscard]] double bubble(partition::StageId stage) const noexcept;
  /// The share of the time that stages work, on average.
  [[nodiscard]] double working() const noexcept;
};

/// The largest share of the time that stages can work, if all chunks take as long.
struct MostWorking {
  double share = 0;
  std::string formula;  ///< "m / (m + s - 1), m = 8, s = 4"
  std::string source;   ///< "arXiv:2104.04473, section 2.2", and what else is said of it
};

/// The closed form of the papers. Nothing if chunk c is not on stage c mod s, or stages have different numbers of them.
[[nodiscard]] std::optional<MostWorking> most_working(const partition::Pipeline& pipeline);

/// The cost of an action.
using ActionCost = std::function<double(const plan::Action& action)>;

/// 1 for a forward and for each part of backward.
[[nodiscard]] double unit_cost(const plan::Action& action) noexcept;

/// Transfers take no time. REQUIRES: the actions are complete and free of deadlock.
[[nodiscard]] Timeline timeline_of(const partition::Pipeline& pipeline, const ActionCost& cost);

/// The largest number of forwards (of a microbatch and a chunk) that a stage has done without all of their backward.
[[nodiscard]] int most_live_forwards(const std::vector<plan::Action>& actions);

/// Draws a row per stage, with actions as cells whose widths are their costs, and a legend. If the cells are wider than
/// `width` columns, the microbatches' numbers are left out; if still too wide, the middle of the step. No cell is drawn
/// in part. Of more than `most_rows` stages, the first and every n-th have a row. REQUIRES: width >= 20, most_rows >=
/// 2.
[[nodiscard]] std::string draw(const Timeline& timeline, std::size_t width, std::size_t most_rows);

}  // namespace shardrun::forecast
