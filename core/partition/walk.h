#pragma once

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

}  // namespace shardrun::partition
