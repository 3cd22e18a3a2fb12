#pragma once

#include <cstdint>

#include "core/bench/cases.h"

namespace shardrun::bench {

// The data that members send in a case, and the expected results. All values are whole numbers so small that sums and
// products over all members are exact in every dtype. Results are compared bit by bit.

/// Writes what `rank` sends in round `round` to its arena. If the op is not in place, overwrites the receive buffer
/// with other values.
void fill(const Case& each, std::uint32_t members, std::uint32_t rank, std::uint32_t round, const Layout& layout,
          std::byte* arena);

/// Number of wrong elements in what `rank` received.
[[nodiscard]] std::uint64_t count_wrong(const Case& each, std::uint32_t members, std::uint32_t rank,
                                        std::uint32_t round, const Layout& layout, const std::byte* arena);

}  // namespace shardrun::bench
