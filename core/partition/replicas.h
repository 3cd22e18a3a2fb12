#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/partition.h"

namespace shardrun::partition {

/// States that the same ranks hold copies of. The ranks that differ only in their coordinates along `axes` hold the
/// same part of each; of a pipeline only those on `stages`.
struct ReplicaSet {
  std::vector<mesh::AxisId> axes;
  std::vector<bool> stages;  ///< which hold the states
  std::vector<graph::StateId> states;

  [[nodiscard]] bool runs_along(mesh::AxisId axis) const noexcept;
  /// Whether the rank at these coordinates has the states.
  [[nodiscard]] bool holds(const Partition& partition, const mesh::Coordinates& at) const {
    return stages[static_cast<std::size_t>(partition.stage_at(at))];
  }
};

/// Every state that several ranks hold copies of between two steps, without gradients, which the next step makes anew.
/// What varies over an axis, or is partial along it, has no copies there. The same on all ranks.
[[nodiscard]] std::vector<ReplicaSet> replicas_of(const graph::Graph& graph, const Partition& partition);

}  // namespace shardrun::partition
