#pragma once

#include <cstddef>
#include <vector>

#include "core/partition/lower.h"

namespace shardrun::partition {

/// What one step of a bucket's settlement moves on the rank at these coordinates: all of it at once where all ranks
/// have all, else state by state; where the states are. Throws Error{internal} where they should lie one after the
/// other and do not.
[[nodiscard]] std::vector<Transfer> settling_transfers(const Bucket& bucket, std::size_t step,
                                                       const LowerSettings& settings, const mesh::Coordinates& at);

}  // namespace shardrun::partition
