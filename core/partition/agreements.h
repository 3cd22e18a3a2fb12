#pragma once

#include <cstdint>
#include <string>

#include "core/partition/partition.h"

namespace shardrun::partition {

// Programs with which ranks exchange a few 32-bit integers between others: `input` numbers, the largest of the ranks'
// in place. They use the room of the other programs' transients.

/// One number, over all ranks; a barrier too.
inline constexpr const char* agreement_function = "agreement";

/// Numbers that each set of replicas gives to a comparison.
inline constexpr std::int64_t numbers_per_replica_set = 4;

/// The comparison of all sets of replicas along one mesh axis.
[[nodiscard]] std::string comparison_function(const mesh::Mesh& mesh, mesh::AxisId axis);

inline constexpr const char* agreed_numbers = "numbers";

/// All of them, the same on all ranks, without offsets. None with one rank.
[[nodiscard]] std::vector<Program> agreements_of(const graph::Graph& graph, const Partition& partition,
                                                 const RankSettings& settings,
                                                 const IdVector<graph::StateId, Buffer>& states);

}  // namespace shardrun::partition
