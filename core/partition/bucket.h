#pragma once

#include <cstdint>
#include <vector>

#include "core/partition/sharded.h"

namespace shardrun::partition {

/// States that owe the same and are reduced together, where they are: their buffers lie one after the other.
struct Bucket {
  std::vector<graph::StateId> states;  ///< in the order of their buffers
  std::vector<mesh::Owed> owed;
};

/// The buckets of a function: what it adds to and is owed, in the order in which nothing is added to it any more.
/// A bucket takes as many states as have up to `bytes` together (`state_bytes` of each), at least one; in this order
/// too.
[[nodiscard]] std::vector<Bucket> buckets_of(const ShardedFunction& function,
                                             const std::vector<std::vector<mesh::Owed>>& owed,
                                             const std::vector<std::uint64_t>& state_bytes, std::uint64_t bytes);

}  // namespace shardrun::partition
