#pragma once

#include <cstdint>

#include "core/bench/cases.h"

namespace shardrun::bench {

// What members send in a case, and what has to come of it. All data are whole numbers so small that every sum and
// product of all members' is exact in every dtype: results are compared bit by bit, without tolerance.

/// What `rank` sends in round `round`, at its place in the arena; where nothing is in place, what it receives is
/// overwritten with something else.
void fill(const Case& each, std::uint32_t members, std::uint32_t rank, std::uint32_t round, const Layout& layout,
          std::byte* arena);

/// How many elements of what `rank` received are not what they have to be.
[[nodiscard]] std::uint64_t count_wrong(const Case& each, std::uint32_t members, std::uint32_t rank,
                                        std::uint32_t round, const Layout& layout, const std::byte* arena);

}  // namespace shardrun::bench
