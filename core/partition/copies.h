#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/mesh/placement.h"
#include "core/partition/program.h"

namespace shardrun::partition {

// Between a buffer of shape `shape` that holds the box `whole` of a tensor and parts of it that lie one after the
// other, as collectives send and receive them.

/// Parts of a tensor that differ along one dimension alone, or are runs of its flattened elements; of each member of a
/// group one.
struct Blocks {
  mesh::Box box;  ///< what they have in common; along `dim` any
  std::size_t dim = 0;
  std::vector<mesh::Interval> along = {};  ///< `dim`

  [[nodiscard]] mesh::Box at(std::size_t member) const;
};

/// Which element of `whole`, row-major, the first of `part` is. REQUIRES: a run is of the same box as `whole`, and only
/// runs are parts of a run.
[[nodiscard]] std::int64_t index_in(const mesh::Box& whole, const mesh::Box& part);

/// Elements of each part.
[[nodiscard]] std::vector<std::int64_t> counts(const Blocks& parts);

/// `part` out of `whole`, to consecutive elements from `to` on.
[[nodiscard]] Copy gather_copy(const std::vector<std::int64_t>& shape, const mesh::Box& whole, const mesh::Box& part,
                               std::int64_t to);

/// The parts out of `whole`; those without elements are left out.
[[nodiscard]] std::vector<Copy> pack(const std::vector<std::int64_t>& shape, const mesh::Box& whole,
                                     const Blocks& parts);

/// The parts into `whole`.
[[nodiscard]] std::vector<Copy> unpack(const std::vector<std::int64_t>& shape, const mesh::Box& whole,
                                       const Blocks& parts);

}  // namespace shardrun::partition
