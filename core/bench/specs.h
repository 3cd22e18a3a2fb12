#pragma once

#include <shardrun/sdk/op.hpp>

#include <cstdint>
#include <vector>

#include "core/bench/cases.h"

namespace shardrun::bench {

/// The op of member `rank` in a case, without ids and buffers. In the V forms, blocks grow with the member's number. In
/// ALL_TO_ALLV all members send the same amount, in different blocks.
[[nodiscard]] std::vector<sdk::OpSpec> specs_of(const Case& each, std::uint32_t members, std::uint32_t rank);

}  // namespace shardrun::bench
