#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shardrun::graph {

/// Consecutive dimensions [from, from_end) of a tensor that a reshape makes into dimensions [to, to_end).
struct Regrouped {
  std::size_t from;
  std::size_t from_end;
  std::size_t to;
  std::size_t to_end;

  [[nodiscard]] bool is_kept() const noexcept { return from_end - from == 1 && to_end - to == 1; }
};

/// The smallest groups. A dimension of one index that is added or removed is a group of its own. REQUIRES: both shapes
/// have the same number of elements, at least one.
[[nodiscard]] std::vector<Regrouped> regroup(std::span<const std::int64_t> from, std::span<const std::int64_t> to);

}  // namespace shardrun::graph
