#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::bench {

/// The smallest value that at most 1 of 100 exceeds; of fewer than 100 values, the largest. REQUIRES: not empty.
[[nodiscard]] double p99(std::vector<double> values);

/// Per iteration, the longest time of any rank. REQUIRES: all of one length.
[[nodiscard]] std::vector<double> slowest(std::span<const std::vector<double>> of_ranks);

/// Bus bandwidth over bandwidth: the part of `bytes` that a link has to move at least. Makes ops and numbers of ranks
/// comparable.
[[nodiscard]] double bus_factor(std::uint32_t opcode, int ranks);

}  // namespace shardrun::bench
