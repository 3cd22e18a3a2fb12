#pragma once

#include <vector>

#include "core/mesh/placement.h"
#include "core/partition/copies.h"
#include "core/partition/program.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// Of the part of a tensor that a rank has, as it lies in memory.
[[nodiscard]] graph::TensorType part_type(const graph::TensorType& whole, const mesh::Box& part);

/// What a collective sends to and receives from each member of a rank's group, as parts of the whole tensor.
struct Parts {
  Collective collective = Collective::all_reduce;
  Blocks sent;
  Blocks received;
  bool packed = false;    ///< what is sent does not lie in the source as it is sent
  bool unpacked = false;  ///< what is received does not lie in the result as it comes
};

/// Of a value of `shape` that goes from one placement to another, on the rank at these coordinates.
/// REQUIRES: it is a collective, no slice.
[[nodiscard]] Parts parts_of(const Transition& transition, const std::vector<std::int64_t>& shape,
                             const mesh::Placement& from, const mesh::Placement& to, const mesh::Mesh& mesh,
                             const mesh::Coordinates& at);

}  // namespace shardrun::partition
