#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/verify/report.h"
#include "core/verify/selection.h"
#include "core/verify/snapshot.h"

namespace shardrun::verify {

/// A whole state, assembled from the ranks' parts.
struct Whole {
  std::vector<double> values;       ///< zero where no rank has the element
  std::vector<std::int32_t> first;  ///< for each element, the first rank that has it; -1: none
  std::vector<mesh::Box> boxes;     ///< the part of each rank; empty if the rank has no part
};

using Gathered = IdVector<graph::StateId, std::optional<Whole>>;

/// Returns a rank's snapshot at the moment to gather. Called for one rank after the other.
using SnapshotOf = std::function<Snapshot(std::int64_t rank)>;

/// Assembles each state from the parts of all ranks. For every selected state, adds a result of kind `replica` to the
/// report: whether ranks that hold the same element have equal bits, and whether each element is on at least one rank.
[[nodiscard]] Gathered gather(const graph::Graph& graph, std::int64_t ranks, std::int64_t step,
                              const SnapshotOf& snapshot_of, const Selection& selection, Report& report);

/// The ranks whose parts contain an element.
[[nodiscard]] std::vector<int> ranks_of(const Whole& whole, const std::vector<std::int64_t>& shape,
                                        std::size_t element);

/// The indices of an element in each dimension, as text: "[3, 0]".
[[nodiscard]] std::string index_text(const std::vector<std::int64_t>& shape, std::size_t element);

}  // namespace shardrun::verify
