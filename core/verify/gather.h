#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/verify/report.h"
#include "core/verify/selection.h"
#include "core/verify/snapshot.h"

namespace shardrun::verify {

/// A state assembled from the ranks' parts.
struct Whole {
  std::vector<double> values;       ///< zero if no rank has the element
  std::vector<std::int32_t> first;  ///< per element, the first rank that has it; -1: none
  std::vector<mesh::Box> boxes;     ///< per rank; without elements where a rank has no part
};

using Gathered = IdVector<graph::StateId, std::optional<Whole>>;

/// A rank's snapshot at the gathered moment. Called for one rank after the other.
using SnapshotOf = std::function<Snapshot(std::int64_t rank)>;

/// Assembles each state from the ranks' parts. For every selected state it adds a result of kind `replica` to the
/// report: whether all ranks that hold an element have the same bits of it, and whether each element is on at least one
/// rank.
[[nodiscard]] Gathered gather(const graph::Graph& graph, std::int64_t ranks, std::int64_t step,
                              const SnapshotOf& snapshot_of, const Selection& selection, Report& report);

/// The ranks that have an element.
[[nodiscard]] std::vector<int> ranks_of(const Whole& whole, const std::vector<std::int64_t>& shape,
                                        std::size_t element);

/// "[3, 0]": an element's index in each dimension.
[[nodiscard]] std::string index_text(const std::vector<std::int64_t>& shape, std::size_t element);

}  // namespace shardrun::verify
