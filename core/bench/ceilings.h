#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/bench/cases.h"
#include "core/launch/rank.h"

namespace shardrun::bench {

/// Measures the machine without a transport: nanoseconds of each iteration on this rank, while the other ranks do the
/// same. `number`: of the case. Throws Error.
[[nodiscard]] std::vector<double> measure_ceiling(const Case& each, std::size_t number, const Layout& layout,
                                                  std::byte* arena, launch::Rank& rank);

}  // namespace shardrun::bench
