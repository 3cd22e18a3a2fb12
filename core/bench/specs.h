#pragma once

#include <shardrun/sdk/op.hpp>

#include <cstdint>
#include <vector>

#include "core/bench/cases.h"

namespace shardrun::bench {

/// What member `rank` does in a case of ops, without ids and buffers. The V forms have blocks that grow with the
/// member's number; all members of an ALL_TO_ALLV send as much, in blocks that differ.
[[nodiscard]] std::vector<sdk::OpSpec> specs_of(const Case& each, std::uint32_t members, std::uint32_t rank);

}  // namespace shardrun::bench
