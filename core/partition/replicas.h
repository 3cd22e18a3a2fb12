#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/partition.h"

namespace shardrun::partition {

/// States that the same ranks hold copies of. Ranks that differ only in their coordinates along `axes` hold the same
/// part of each state. With a pipeline, only ranks on `stages` hold the states.
struct ReplicaSet {
  std::vector<mesh::AxisId> axes;
  IdVector<StageId, bool> stages;  ///< whether each stage holds the states
  std::vector<graph::StateId> states;

  [[nodiscard]] bool runs_along(mesh::AxisId axis) const noexcept;
  /// Whether the rank at these coordinates holds the states.
  [[nodiscard]] bool holds(const Partition& partition, const mesh::Coordinates& at) const {
    return stages[partition.stage_at(at)];
  }
};

/// The sets of states that several ranks hold copies of between two steps; the same on all ranks. Gradients are left
/// out, because the next step makes them anew. A state that varies over an axis, or is partial over it, has no copies
/// along that axis.
[[nodiscard]] std::vector<ReplicaSet> replicas_of(const graph::Graph& graph, const Partition& partition);

}  // namespace shardrun::partition
