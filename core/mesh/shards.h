#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/mesh/placement.h"

namespace shardrun::mesh {

/// A part of a tensor, and the ranks that have it.
struct Shard {
  Box box;
  std::vector<std::int64_t> ranks;  ///< ascending

  bool operator==(const Shard&) const = default;
};

/// The parts of a tensor, including empty ones, in the order of their places in it. The last dimension is the fastest.
[[nodiscard]] std::vector<Shard> shards_of(const std::vector<std::int64_t>& shape, const Placement& placement,
                                           const Mesh& mesh);

/// Ranks as text: "0,2", "0-63", "0-3,8,9"; many ranks at equal distances as "0,4,…,60". REQUIRES: they are ascending.
[[nodiscard]] std::string ranks_text(const std::vector<std::int64_t>& ranks);

[[nodiscard]] Interval interval_along(const Box& box, std::size_t dim) noexcept;

/// An interval as text, "4:8"; the end is not included.
[[nodiscard]] std::string to_string(const Interval& interval);

/// A part as text: "[0:16, 4:8]" has the indices of each dimension, ends not included. For a run it is "elements 0:31
/// of [0:16, 4:8]".
[[nodiscard]] std::string ranges_text(const Box& box);

}  // namespace shardrun::mesh
