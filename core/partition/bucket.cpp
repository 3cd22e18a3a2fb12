#include "core/partition/bucket.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shardrun::partition {
namespace {

/// Whether two states are finalized by the same collectives, each over its own dimensions.
bool alike(const Finalization& a, const Finalization& b) {
  return std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end(),
                    [](const Transition& x, const Transition& y) {
                      return x.kind == y.kind && x.axis == y.axis && x.reduction == y.reduction;
                    });
}

bool is_hooked(const Finalization& finalization) {
  return !finalization.steps.empty() && finalization.steps.back().kind == Transition::Kind::hook;
}

bool is_metric(const graph::Graph& graph, graph::StateId state) {
  return graph.states[state].kind == graph::StateKind::metric;
}

/// The states that a function adds to and this rank finalizes, in the order of their last contributions. All metrics
/// count as completed with the last one of them.
std::vector<graph::StateId> in_order_of_completion(const graph::Graph& graph, const SplitFunction& function,
                                                   const IdVector<graph::StateId, Finalization>& finalizations,
                                                   const std::function<bool(graph::StateId)>& finalizes) {
  std::map<graph::StateId, graph::NodeId> complete;
  for (const graph::StateWrite& write : function.writes) {
    if (write.mode != graph::StateWrite::Mode::assign && !finalizations[write.state].steps.empty() &&
        finalizes(write.state)) {
      graph::NodeId& last = complete[write.state];
      last = std::max(last, function.values[write.value].producer);
    }
  }
  std::vector<graph::StateId> order;
  for (const auto& [state, node] : complete) {
    order.push_back(state);
  }
  graph::NodeId last_metric = {};
  for (const graph::StateId state : order) {
    last_metric = is_metric(graph, state) ? std::max(last_metric, complete[state]) : last_metric;
  }
  std::stable_sort(order.begin(), order.end(), [&](graph::StateId a, graph::StateId b) {
    return std::pair(is_metric(graph, a) ? last_metric : complete[a], is_metric(graph, a)) <
           std::pair(is_metric(graph, b) ? last_metric : complete[b], is_metric(graph, b));
  });
  return order;
}

}  // namespace

GroupKey group_key(const mesh::Placement& placement) {
  GroupKey key{.split = {placement.flat.begin(), placement.flat.end()}, .varying = placement.varying};
  for (const std::vector<mesh::AxisId>& axes : placement.dims) {
    key.split.insert(axes.begin(), axes.end());
  }
  return key;
}

std::vector<Bucket> buckets_of(const graph::Graph& graph, const SplitFunction& function,
                               const IdVector<graph::StateId, Finalization>& finalizations,
                               const std::function<bool(graph::StateId)>& finalizes,
                               const IdVector<graph::StateId, std::uint64_t>& state_bytes, std::uint64_t bytes) {
  std::vector<Bucket> buckets;
  std::vector<std::uint64_t> filled;
  const auto takes = [&](std::size_t bucket, graph::StateId state) {
    const graph::StateId first = buckets[bucket].states.front();
    const Finalization& own = finalizations[state];
    return alike(finalizations[first], own) && graph.states[first].type.dtype == graph.states[state].type.dtype &&
           (!is_hooked(own) || group_key(finalizations[first].after) == group_key(own.after)) &&
           (filled[bucket] + state_bytes[state] <= bytes || (is_metric(graph, first) && is_metric(graph, state)));
  };
  for (const graph::StateId state : in_order_of_completion(graph, function, finalizations, finalizes)) {
    // A state without a hook joins only the last bucket. A state with a hook can join any bucket, because tensors of
    // different hook groups alternate.
    std::size_t bucket = buckets.size();
    const std::size_t open = is_hooked(finalizations[state]) || buckets.empty() ? 0 : buckets.size() - 1;
    while (bucket > open && !takes(bucket - 1, state)) {
      --bucket;
    }
    if (bucket == open) {
      buckets.push_back({.states = {}, .steps = finalizations[state].steps});
      filled.push_back(0);
      bucket = buckets.size();
    }
    buckets[bucket - 1].states.push_back(state);
    filled[bucket - 1] += state_bytes[state];
  }
  return buckets;
}

}  // namespace shardrun::partition
