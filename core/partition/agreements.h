#pragma once

#include <cstdint>
#include <string>
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

// Programs by which ranks agree on a few 32-bit integers. Each rank writes its numbers to the input `agreed_numbers`,
// and each number becomes the largest one on any rank. These programs share the memory for transients with the others.

/// The agreement of all ranks on one number; also used as a barrier.
inline constexpr const char* agreement_function = "agreement";

/// How many numbers each set of replicas contributes to a comparison.
inline constexpr std::int64_t numbers_per_replica_set = 4;

/// The name of the program that compares all sets of replicas along one mesh axis.
[[nodiscard]] std::string comparison_function(const mesh::Mesh& mesh, mesh::AxisId axis);

inline constexpr const char* agreed_numbers = "numbers";

/// All agreement programs, the same on all ranks; their buffers have no offsets yet. Empty for a single rank.
[[nodiscard]] std::vector<Program> agreements_of(const graph::Graph& graph, const Partition& partition,
                                                 const RankSettings& settings,
                                                 const IdVector<graph::StateId, Buffer>& states);

}  // namespace shardrun::partition
