#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/collectives/contestant.h"

namespace shardrun::bench {

/// How one contestant did at one exercise.
struct Result {
  std::string contestant;
  bool is_ours = false;
  bool is_ceiling = false;
  std::uint64_t wrong = 0;           ///< elements, over all ranks
  std::vector<double> microseconds;  ///< an op, of the slowest rank, a round each
};

struct Row {
  Kind kind = Kind::all_reduce;
  bool in_place = false;
  std::uint64_t bytes = 0;  ///< of the larger buffer of a rank
  std::vector<Result> results;
};

/// Lets all contestants that have the op do it in turns, round after round, on buffers at the arena's beginning.
/// `seconds`: about as long is each one's turn.
[[nodiscard]] Row race(Meeting& meeting, const memory::Arena& arena, const Contestants& contestants, Kind kind,
                       bool in_place, std::uint64_t bytes, int rounds, double seconds);

[[nodiscard]] double median(std::vector<double> values);
/// The median over the rounds of how many times as long the rival took.
[[nodiscard]] double speed_against(const Result& ours, const Result& rival);

}  // namespace shardrun::bench
