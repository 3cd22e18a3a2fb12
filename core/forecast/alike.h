#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/partition.h"

namespace shardrun::forecast {

/// Ranks of one stage whose programs are the same but for where their parts begin: they have parts of the same sizes of
/// everything. In the order of their first ranks, each list ascending.
[[nodiscard]] std::vector<std::vector<std::int64_t>> alike_ranks(const graph::Graph& graph,
                                                                 const partition::Partition& partition,
                                                                 const partition::StageFunctions& stage);

/// What one execution of a program sends, of every rank that is alike to the one it was made for: by mesh axis, and by
/// coordinate along it.
using SentTable = std::vector<std::vector<partition::SentBytes>>;

/// `programs`: by number, one for each execution.
[[nodiscard]] SentTable sent_table(const partition::Programs& programs, const std::vector<std::size_t>& executed,
                                   std::size_t f32_bytes);

/// Of the rank at these coordinates.
[[nodiscard]] partition::SentBytes sent_of(const SentTable& table, const mesh::Coordinates& at);

}  // namespace shardrun::forecast
