#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/partition.h"

namespace shardrun::partition {

/// Groups ranks of one stage whose programs differ only in where their parts start: all their parts have the same
/// sizes. Sorted by first rank; each group ascending.
[[nodiscard]] std::vector<std::vector<std::int64_t>> alike_ranks(const graph::Graph& graph, const Partition& partition,
                                                                 const StageFunctions& stage);

/// Bytes that one execution of a program sends, for every rank that is alike to the one it was made for: by mesh axis,
/// and by coordinate along it.
using SentTable = IdVector<mesh::AxisId, std::vector<SentBytes>>;

/// `programs`: numbers, one per execution.
[[nodiscard]] SentTable sent_table(const Programs& programs, const std::vector<std::size_t>& executed);

/// For the rank at these coordinates.
[[nodiscard]] SentBytes sent_of(const SentTable& table, const mesh::Coordinates& at);

}  // namespace shardrun::partition
