#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/bench/settings.h"
#include "core/launch/rank.h"

namespace shardrun::bench {

/// A rank's measurements of a case, which it sends to the launcher.
struct Sample {
  std::uint64_t number = 0;  ///< number of the case
  std::uint64_t wrong = 0;   ///< number of wrong elements
  std::vector<double> nanoseconds;
};

/// The kind of message that carries a sample.
inline constexpr const char* sample_message = "sample";

[[nodiscard]] std::string to_bytes(const Sample& sample);
[[nodiscard]] Sample sample_of(std::string_view bytes);

/// Joins, measures all cases with the other ranks, and leaves. Returns the exit code: 0, 128 + signal after a stop, or
/// that of an error. Reports errors to the launcher before the rank's connections end. `stop_signal`: for ranks that
/// another launcher has started, returns the signal that asked this process itself to stop, or 0. Throws nothing.
[[nodiscard]] int measure_as_rank(
    const Settings& settings, const launch::RankContext& context,
    const std::function<int()>& stop_signal = [] { return 0; });

}  // namespace shardrun::bench
