#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "core/bench/cases.h"

namespace shardrun::bench {

/// Calls `act` `each.warm_up` times untimed, then `each.iterations` times timed.
/// Returns the nanoseconds of each timed call.
template <class Act>
[[nodiscard]] std::vector<double> timed(const Case& each, const Act& act) {
  using Clock = std::chrono::steady_clock;
  for (std::int64_t i = 0; i < each.warm_up; ++i) {
    act();
  }
  std::vector<double> times(static_cast<std::size_t>(each.iterations));
  Clock::time_point last = Clock::now();
  for (double& time : times) {
    act();
    const Clock::time_point now = Clock::now();
    time = std::chrono::duration<double, std::nano>(now - last).count();
    last = now;
  }
  return times;
}

/// The smallest value that at most 1 in 100 values exceeds; of fewer than 100 values, the largest.
/// REQUIRES: there are values.
[[nodiscard]] double p99(std::vector<double> values);

/// Per iteration, the longest time of any rank. REQUIRES: all ranks have the same number of iterations.
[[nodiscard]] std::vector<double> slowest(std::span<const std::vector<double>> of_ranks);

/// Bus bandwidth divided by algorithm bandwidth: the least number of bytes that a link has to move, divided by `bytes`.
/// It makes ops and numbers of ranks comparable.
[[nodiscard]] double bus_factor(std::uint32_t opcode, int ranks);

}  // namespace shardrun::bench
