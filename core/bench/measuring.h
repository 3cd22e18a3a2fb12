#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/bench/settings.h"
#include "core/launch/rank.h"

namespace shardrun::bench {

/// What a rank tells the launcher of a case.
struct Sample {
  std::uint64_t number = 0;  ///< of the case
  std::uint64_t wrong = 0;   ///< elements
  std::vector<double> nanoseconds;
};

/// The kind of message that a sample is.
inline constexpr const char* sample_message = "sample";

[[nodiscard]] std::string to_bytes(const Sample& sample);
[[nodiscard]] Sample sample_of(std::string_view bytes);

/// Joins, measures all cases with the other ranks, and leaves. Returns the exit code: 0, 128 + signal after a stop,
/// that of the error where it fails; the launcher is told of errors before the rank's connections end, and nothing is
/// thrown.
[[nodiscard]] int measure_as_rank(const Settings& settings, const launch::RankContext& context);

}  // namespace shardrun::bench
