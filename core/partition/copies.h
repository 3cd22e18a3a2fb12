#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/mesh/placement.h"
#include "core/partition/program.h"

namespace shardrun::partition {

// Copies between a tensor and the packed blocks that a collective sends or receives. The tensor's buffer has shape
// `shape` and holds the box `whole` of the tensor. The blocks are contiguous, one after the other.

/// One part of a tensor for each member of a group. The parts differ along one dimension only, or are runs of the
/// flattened elements.
struct Blocks {
  mesh::Box box;  ///< the box of every part, except for its interval along `dim`
  std::size_t dim = 0;
  std::vector<mesh::Interval> along = {};  ///< the interval of each member along `dim`

  [[nodiscard]] mesh::Box at(std::size_t member) const;
};

/// The row-major index in `whole` of the first element of `part`. REQUIRES: if `part` is a run, it is a run of the box
/// `whole`; if `whole` is a run, so is `part`.
[[nodiscard]] std::int64_t index_in(const mesh::Box& whole, const mesh::Box& part);

[[nodiscard]] mesh::Interval common(mesh::Interval a, mesh::Interval b);
[[nodiscard]] mesh::Box common(const mesh::Box& a, const mesh::Box& b);
/// The interval of indices that a box has along a dimension.
[[nodiscard]] mesh::Interval along(const mesh::Box& box, std::size_t dim);

/// The number of elements of each part.
[[nodiscard]] std::vector<std::int64_t> counts(const Blocks& parts);

/// Copies `part` out of `whole` to consecutive elements from `to` on.
[[nodiscard]] Copy gather_copy(const std::vector<std::int64_t>& shape, const mesh::Box& whole, const mesh::Box& part,
                               std::int64_t to);

/// Copies the elements that two boxes of a tensor have in common, from the buffer of `from` to that of `to`.
[[nodiscard]] Copy shared_copy(const mesh::Box& from, const mesh::Box& to);

/// Copies the parts from `whole` to the packed blocks. Leaves out empty parts.
[[nodiscard]] std::vector<Copy> pack(const std::vector<std::int64_t>& shape, const mesh::Box& whole,
                                     const Blocks& parts);

/// Copies the packed blocks to their parts of `whole`. Leaves out empty parts.
[[nodiscard]] std::vector<Copy> unpack(const std::vector<std::int64_t>& shape, const mesh::Box& whole,
                                       const Blocks& parts);

}  // namespace shardrun::partition
