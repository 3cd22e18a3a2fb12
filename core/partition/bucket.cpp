#include "core/partition/bucket.h"

#include <algorithm>
#include <map>

namespace shardrun::partition {
namespace {

std::size_t index(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

}  // namespace

std::vector<Bucket> buckets_of(const ShardedFunction& function, const std::vector<std::vector<mesh::Owed>>& owed,
                               const std::vector<std::uint64_t>& state_bytes, std::uint64_t bytes) {
  std::map<graph::StateId, graph::NodeId> complete;
  for (const graph::StateWrite& write : function.function.writes) {
    if (write.mode != graph::StateWrite::Mode::assign && !owed[index(write.state)].empty()) {
      graph::NodeId& last = complete.emplace(write.state, -1).first->second;
      last = std::max(last, function.function.values[index(write.value)].producer);
    }
  }
  std::vector<graph::StateId> order;
  for (const auto& [state, node] : complete) {
    order.push_back(state);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](graph::StateId a, graph::StateId b) { return complete[a] < complete[b]; });
  std::vector<Bucket> buckets;
  std::uint64_t filled = 0;
  for (const graph::StateId state : order) {
    const bool fits =
        !buckets.empty() && buckets.back().owed == owed[index(state)] && filled + state_bytes[index(state)] <= bytes;
    if (!fits) {
      buckets.push_back({.states = {}, .owed = owed[index(state)]});
      filled = 0;
    }
    buckets.back().states.push_back(state);
    filled += state_bytes[index(state)];
  }
  return buckets;
}

}  // namespace shardrun::partition
