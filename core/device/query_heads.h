#pragma once

#include <cstdint>

#include "core/device/device.h"

namespace shardrun::device {

/// The query heads of a shard, in groups that share a head of keys and values. The first group lacks its first heads
/// and the last group its last heads if other shards have them. Head g of group h is number h · group + g - skipped of
/// the shard's heads.
struct QueryHeads {
  std::int64_t count = 0;    ///< query heads of this shard
  std::int64_t group = 1;    ///< heads of a whole group
  std::int64_t skipped = 0;  ///< heads that the first group lacks
  // Random numbers use a head's number among all heads of a sample: of_first + h · of_group + g.
  std::int64_t of_first = 0;
  std::int64_t of_group = 1;

  [[nodiscard]] std::int64_t of(std::int64_t h, std::int64_t g) const noexcept { return h * group + g - skipped; }
  [[nodiscard]] std::int64_t number_of_all(std::int64_t h, std::int64_t g) const noexcept {
    return of_first + h * of_group + g;
  }
  /// The shard has the heads [first(h), last(h)) of group h.
  [[nodiscard]] std::int64_t first(std::int64_t h) const noexcept { return h == 0 ? skipped : 0; }
  [[nodiscard]] std::int64_t last(std::int64_t h) const noexcept {
    const std::int64_t left = count + skipped - h * group;
    return left < group ? left : group;
  }
};

/// q: [batch, seq, kv_heads, group, head_dim], or [batch, seq, heads, head_dim] with the attribute `group`.
/// k: [batch, keys, kv_heads, head_dim]
[[nodiscard]] QueryHeads query_heads(const graph::Attributes& attributes, const TensorView& q, const TensorView& k);

}  // namespace shardrun::device
