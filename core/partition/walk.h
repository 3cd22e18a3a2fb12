#pragma once

#include <cstddef>
#include <vector>

namespace shardrun::partition {

/// Advances through the lists of all stages until none can go on. `advance(stage, entry)` executes the next entry of a
/// stage's list and returns true, or returns false if the entry has to wait for another stage. Returns the number of
/// executed entries of each list.
template <class Entry, class Advance>
std::vector<std::size_t> walk(const std::vector<std::vector<Entry>>& stages, const Advance& advance) {
  std::vector<std::size_t> done(stages.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      while (done[stage] < stages[stage].size() && advance(stage, stages[stage][done[stage]])) {
        ++done[stage];
        moved = true;
      }
    }
  }
  return done;
}

}  // namespace shardrun::partition
