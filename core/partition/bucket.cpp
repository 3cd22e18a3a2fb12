#include "core/partition/bucket.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shardrun::partition {
namespace {

std::size_t index(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

/// Whether two states are settled by the same collectives, each over its own dimensions.
bool alike(const Settlement& a, const Settlement& b) {
  return std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end(),
                    [](const Transition& x, const Transition& y) {
                      return x.kind == y.kind && x.axis == y.axis && x.reduction == y.reduction;
                    });
}

}  // namespace

std::vector<Bucket> buckets_of(const graph::Graph& graph, const ShardedFunction& function,
                               const std::vector<Settlement>& settlements,
                               const std::function<bool(graph::StateId)>& settles,
                               const std::vector<std::uint64_t>& state_bytes, std::uint64_t bytes) {
  std::map<graph::StateId, graph::NodeId> complete;
  for (const graph::StateWrite& write : function.function.writes) {
    if (write.mode != graph::StateWrite::Mode::assign && !settlements[index(write.state)].steps.empty() &&
        settles(write.state)) {
      graph::NodeId& last = complete.emplace(write.state, -1).first->second;
      last = std::max(last, function.function.values[index(write.value)].producer);
    }
  }
  std::vector<graph::StateId> order;
  for (const auto& [state, node] : complete) {
    order.push_back(state);
  }
  const auto is_metric = [&](graph::StateId state) {
    return graph.states[index(state)].kind == graph::StateKind::metric;
  };
  graph::NodeId last_metric = -1;
  for (const graph::StateId state : order) {
    last_metric = is_metric(state) ? std::max(last_metric, complete[state]) : last_metric;
  }
  std::stable_sort(order.begin(), order.end(), [&](graph::StateId a, graph::StateId b) {
    return std::pair(is_metric(a) ? last_metric : complete[a], is_metric(a)) <
           std::pair(is_metric(b) ? last_metric : complete[b], is_metric(b));
  });
  std::vector<Bucket> buckets;
  std::uint64_t filled = 0;
  for (const graph::StateId state : order) {
    const bool fits =
        !buckets.empty() && alike(settlements[index(buckets.back().states.front())], settlements[index(state)]) &&
        (filled + state_bytes[index(state)] <= bytes || (is_metric(buckets.back().states.front()) && is_metric(state)));
    if (!fits) {
      buckets.push_back({.states = {}, .steps = settlements[index(state)].steps});
      filled = 0;
    }
    buckets.back().states.push_back(state);
    filled += state_bytes[index(state)];
  }
  return buckets;
}

}  // namespace shardrun::partition
