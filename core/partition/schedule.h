#pragma once

#include <cstdint>
#include <vector>

#include "core/partition/split_function.h"

namespace shardrun::partition {

/// What all ranks do at one place of a function.
struct Step {
  enum class Kind : std::uint8_t {
    compute,  ///< one node: of the graph, or a slice
    start,    ///< the transitions `nodes` begin; what ops with an exchange compute by themselves is computed
    wait,     ///< they end
  } kind = Kind::compute;
  std::vector<graph::NodeId> nodes;
};

/// The order in which a function's nodes are done, which says when its transfers begin and end.
///
/// A transition is waited for where it stands, except that
/// - what a unit is gathered from begins with the first op that uses the unit before it (Zhao et al. 2023,
///   arXiv:2304.11277, section 3.3.2: one ahead);
/// - exchanges that stand one behind the other are made together;
/// - what states alone take, reduced gradients and updated parameters, is moved while the rest is computed: as much as
///   becomes ready one after the other and has up to `bucket_bytes` on a rank, at least one; two of these have
///   buffers at a time;
/// - what is sent to another stage goes while the rest is computed, as much at a time along a link as is needed lest
///   stages wait for each other.
[[nodiscard]] std::vector<Step> schedule(const SplitFunction& function, const mesh::Mesh& mesh,
                                         std::uint64_t bucket_bytes);

}  // namespace shardrun::partition
