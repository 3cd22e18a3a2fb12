#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/bench/cases.h"
#include "core/launch/rank.h"

namespace shardrun::bench {

/// Measures the machine without a transport: the nanoseconds of each iteration on this rank, while the other ranks do
/// the same. `number`: the case's number. Throws Error.
[[nodiscard]] std::vector<double> measure_ceiling(const Case& each, std::size_t number, const ArenaLayout& layout,
                                                  std::byte* arena, launch::Rank& rank);

}  // namespace shardrun::bench
