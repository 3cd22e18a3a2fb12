#pragma once

#include <cstddef>
#include <vector>

namespace shardrun::partition {

/// Goes through the lists of all stages, each in its order, as far as they come. `advance(stage, entry)` does a stage's
/// next entry and returns true, or returns false where that has to wait for another stage.
/// Returns how many entries of each list were done.
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
