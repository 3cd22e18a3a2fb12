#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/partition.h"

namespace shardrun::partition {

/// Groups the ranks of one stage whose parts have the same sizes: their programs differ only in the parts' positions.
/// Groups are sorted by their first rank; the ranks in a group ascend.
[[nodiscard]] std::vector<std::vector<std::int64_t>> alike_ranks(const graph::Graph& graph, const Partition& partition,
                                                                 const StageFunctions& stage);

/// Bytes that a sequence of program executions sends, by mesh axis and by the rank's coordinate along that axis. A
/// table is valid for all ranks that are alike.
using SentTable = IdVector<mesh::AxisId, std::vector<SentBytes>>;

/// Adds up what all executions send. `executed`: for each execution, the index in programs.programs.
[[nodiscard]] SentTable sent_table(const Programs& programs, const std::vector<std::size_t>& executed);

/// The bytes that the rank at these coordinates sends.
[[nodiscard]] SentBytes sent_of(const SentTable& table, const mesh::Coordinates& at);

}  // namespace shardrun::partition
