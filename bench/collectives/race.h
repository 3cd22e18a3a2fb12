#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/collectives/contestant.h"

namespace shardrun::bench {

/// One contestant's result in one exercise.
struct Result {
  std::string contestant;
  bool is_ours = false;
  bool is_ceiling = false;
  std::uint64_t wrong = 0;           ///< elements, over all ranks
  std::vector<double> microseconds;  ///< per op, of the slowest rank, one per round
};

struct Row {
  Kind kind = Kind::all_reduce;
  bool in_place = false;
  std::uint64_t bytes = 0;  ///< of a rank's larger buffer
  std::vector<Result> results;
};

/// Runs all contestants that have the op in turns, round after round, on buffers at the arena's beginning. `seconds`:
/// the approximate length of a turn.
[[nodiscard]] Row race(Rendezvous& rendezvous, const device::HostMemory& arena, const Contestants& contestants,
                       Kind kind, bool in_place, std::uint64_t bytes, int rounds, double seconds);

[[nodiscard]] double median(std::vector<double> values);
/// The median over the rounds of the rival's time divided by the contestant's.
[[nodiscard]] double speed_against(const Result& ours, const Result& rival);

}  // namespace shardrun::bench
