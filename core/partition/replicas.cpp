#include "core/partition/replicas.h"

#include <algorithm>
#include <utility>

namespace shardrun::partition {
namespace {

/// If any tensor varies between ranks, metrics such as the loss vary too.
bool has_copies(graph::StateKind kind, bool any_varies) noexcept {
  return kind != graph::StateKind::gradient && !(kind == graph::StateKind::metric && any_varies);
}

}  // namespace

bool ReplicaSet::runs_along(mesh::AxisId axis) const noexcept {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

std::vector<ReplicaSet> replicas_of(const graph::Graph& graph, const Partition& partition) {
  const mesh::Mesh& mesh = partition.placements.mesh;
  const IdVector<graph::StateId, mesh::Placement>& placements = partition.placements.states;
  const bool any_varies = std::any_of(placements.begin(), placements.end(),
                                      [](const mesh::Placement& placement) { return !placement.varying.empty(); });
  std::vector<ReplicaSet> sets;
  for (const graph::StateId s : graph.states.ids()) {
    if (!has_copies(graph.states[s].kind, any_varies)) {
      continue;
    }
    const mesh::Placement& placement = partition.sharded.finalizations[s].after;
    ReplicaSet set{.axes = {}, .stages = partition.stages.states.held[s], .states = {}};
    for (const mesh::AxisId axis : mesh.axes.ids()) {
      const bool is_replicated = axis == partition.pipeline.axis
                                     ? std::count(set.stages.begin(), set.stages.end(), true) > 1
                                     : mesh.size(axis) > 1 && !placement.splits(axis) && !placement.varies(axis) &&
                                           !placement.is_partial(axis);
      if (is_replicated) {
        set.axes.push_back(axis);
      }
    }
    if (set.axes.empty()) {
      continue;
    }
    const auto known = std::find_if(sets.begin(), sets.end(), [&](const ReplicaSet& each) {
      return each.axes == set.axes && each.stages == set.stages;
    });
    ReplicaSet& found = known == sets.end() ? sets.emplace_back(std::move(set)) : *known;
    found.states.push_back(s);
  }
  return sets;
}

}  // namespace shardrun::partition
