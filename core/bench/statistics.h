#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::bench {

/// The smallest value that at most 1 in 100 values exceeds; of fewer than 100 values, the largest.
/// REQUIRES: there are values.
[[nodiscard]] double p99(std::vector<double> values);

/// Per iteration, the longest time of any rank. REQUIRES: all ranks have the same number of iterations.
[[nodiscard]] std::vector<double> slowest(std::span<const std::vector<double>> of_ranks);

/// Bus bandwidth divided by algorithm bandwidth: the least number of bytes that a link has to move, divided by `bytes`.
/// It makes ops and numbers of ranks comparable.
[[nodiscard]] double bus_factor(std::uint32_t opcode, int ranks);

}  // namespace shardrun::bench
