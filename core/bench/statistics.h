#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::bench {

/// The least value that at most 1 of 100 exceed: the largest of fewer than 100. REQUIRES: not empty.
[[nodiscard]] double p99(std::vector<double> values);

/// Iteration by iteration, the longest of what the ranks took. REQUIRES: all of one length.
[[nodiscard]] std::vector<double> slowest(std::span<const std::vector<double>> of_ranks);

/// Bus bandwidth over bandwidth: what part of `bytes` a link moves at least, so that ops and numbers of ranks compare.
[[nodiscard]] double bus_factor(std::uint32_t opcode, int ranks);

}  // namespace shardrun::bench
