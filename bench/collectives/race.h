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
  std::uint64_t wrong = 0;           ///< wrong elements, on the rank with the most of them
  std::vector<double> microseconds;  ///< microseconds per op of the slowest rank, one entry per round
};

struct Row {
  Kind kind = Kind::all_reduce;
  bool in_place = false;
  std::uint64_t bytes = 0;  ///< bytes of the larger buffer of a rank
  std::vector<Result> results;
};

/// Lets all contestants that have the op take turns, round after round, on buffers at the beginning of the arena.
/// `bytes`: size of a rank's larger buffer. `seconds`: approximate length of a turn.
[[nodiscard]] Row race(Rendezvous& rendezvous, const device::HostMemory& arena, const Contestants& contestants,
                       Kind kind, bool in_place, std::uint64_t bytes, int rounds, double seconds);

[[nodiscard]] double median(std::vector<double> values);
/// The rival's time divided by our time, as the median over rounds: above 1, ours is faster.
[[nodiscard]] double speed_against(const Result& ours, const Result& rival);

}  // namespace shardrun::bench
