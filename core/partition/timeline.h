#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/partition/pipeline.h"

namespace shardrun::partition {

/// When a stage does an action, in the unit of its costs.
struct TimedAction {
  plan::Action action;
  double begin = 0;
  double end = 0;
};

/// A pipeline's actions in time, each as early as its stage and what it needs allow.
struct Timeline {
  std::vector<std::vector<TimedAction>> stages;
  double end = 0;

  /// Time that a stage does nothing, over the time that it works; 0 where it has nothing to do.
  [[nodiscard]] double bubble(std::size_t stage) const noexcept;
};

/// What an action costs.
using ActionCost = std::function<double(const plan::Action& action)>;

/// Forward, and each part of backward, 1.
[[nodiscard]] double unit_cost(const plan::Action& action) noexcept;

/// What is sent takes no time of its own. REQUIRES: the actions are complete and come to their ends.
[[nodiscard]] Timeline timeline_of(const Pipeline& pipeline, const ActionCost& cost);

/// The most forwards, of a microbatch and a chunk, that a stage has done and not all of backward.
[[nodiscard]] int most_live_forwards(const std::vector<plan::Action>& actions);

/// A row a stage, of actions as cells whose widths are their costs, and a legend of what the rows hold. Where cells
/// with microbatches' numbers are wider than `width` columns together the numbers are left out, and where that is too
/// wide too, what lies between the beginning and the end: no cell is drawn in part. Of more than `most_rows` stages the
/// first, and every so many behind it, have a row. REQUIRES: width >= 20, most_rows >= 2.
[[nodiscard]] std::string draw(const Timeline& timeline, std::size_t width, std::size_t most_rows);

}  // namespace shardrun::partition
