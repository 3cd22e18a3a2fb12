#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shardrun::graph {

/// Consecutive dimensions [from, from_end) of the operand that a reshape turns into dimensions [to, to_end).
struct Regrouped {
  std::size_t from;
  std::size_t from_end;
  std::size_t to;
  std::size_t to_end;

  /// Whether the group has dimensions on both sides. If not, a dimension of size 1 is added or removed.
  [[nodiscard]] bool has_both() const noexcept { return from < from_end && to < to_end; }
  [[nodiscard]] bool is_kept() const noexcept { return from_end - from == 1 && to_end - to == 1; }
};

/// Divides a reshape into the smallest groups, and calls `visit` with each in order. REQUIRES: both shapes have the
/// same number of elements, at least one.
template <typename Visit>
void for_each_group(std::span<const std::int64_t> from, std::span<const std::int64_t> to, const Visit& visit) {
  for (std::size_t i = 0, j = 0; i < from.size() || j < to.size();) {
    Regrouped group{i, i, j, j};
    const bool one_in_from = i < from.size() && from[i] == 1;
    const bool one_in_to = j < to.size() && to[j] == 1;
    if (one_in_from || one_in_to) {
      i += one_in_from ? 1 : 0;
      j += one_in_to ? 1 : 0;
    } else {
      for (std::int64_t in_from = from[i++], in_to = to[j++]; in_from != in_to;) {
        in_from < in_to ? in_from *= from[i++] : in_to *= to[j++];
      }
    }
    group.from_end = i;
    group.to_end = j;
    visit(group);
  }
}

}  // namespace shardrun::graph
