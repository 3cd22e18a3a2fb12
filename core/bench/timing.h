#pragma once

#include <chrono>
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

}  // namespace shardrun::bench
