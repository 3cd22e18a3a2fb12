#pragma once

#include <vector>

#include "core/mesh/placement.h"
#include "core/partition/copies.h"
#include "core/partition/program.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The type of a rank's part of a tensor, as stored in memory.
[[nodiscard]] graph::TensorType part_type(const graph::TensorType& whole, const mesh::Box& part);

/// The parts of a tensor that a rank sends to each member of its group in a collective, and those that it receives.
struct Parts {
  Collective collective = Collective::all_reduce;
  Blocks sent;
  Blocks received;
  bool packed = false;    ///< whether the source must be packed before sending
  bool unpacked = false;  ///< whether what arrives must be copied into the result's layout
};

/// The parts that the rank at these coordinates sends and receives, for a value of `shape` that goes from one placement
/// to another. REQUIRES: `transition` is a collective other than a slice.
[[nodiscard]] Parts parts_of(const Transition& transition, const std::vector<std::int64_t>& shape,
                             const mesh::Placement& from, const mesh::Placement& to, const mesh::Mesh& mesh,
                             const mesh::Coordinates& at);

}  // namespace shardrun::partition
