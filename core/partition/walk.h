#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/partition/split_function.h"

namespace shardrun::partition {

/// Advances through the lists of all stages until none can go on. `advance(stage, entry)` executes the next entry of a
/// stage's list and returns true, or returns false if the entry has to wait for another stage. Returns the number of
/// executed entries of each list.
template <class Entry, class Advance>
IdVector<StageId, std::size_t> walk(const IdVector<StageId, std::vector<Entry>>& stages, const Advance& advance) {
  IdVector<StageId, std::size_t> done(stages.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (const StageId stage : stages.ids()) {
      while (done[stage] < stages[stage].size() && advance(stage, stages[stage][done[stage]])) {
        ++done[stage];
        moved = true;
      }
    }
  }
  return done;
}

/// The collectives of all stages, in order. A stage passes a collective when all stages have reached it.
class Meetings {
 public:
  explicit Meetings(std::size_t stages) : come_(stages, 0), passed_(stages, 0) {}

  /// The stage reaches its next collective. Returns whether it passes.
  bool pass(StageId stage) {
    come_[stage] = passed_[stage] + 1;
    const bool passes = std::ranges::all_of(come_, [&](std::size_t come) { return come > passed_[stage]; });
    passed_[stage] += passes ? 1 : 0;
    return passes;
  }

 private:
  IdVector<StageId, std::size_t> come_;    ///< collectives that each stage has reached
  IdVector<StageId, std::size_t> passed_;  ///< collectives that each stage has passed
};

}  // namespace shardrun::partition
