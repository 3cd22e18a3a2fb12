#pragma once

#include <cstdint>
#include <vector>

#include "core/mesh/placement.h"
#include "core/partition/program.h"

namespace shardrun::partition {

// Between a buffer of shape `shape` that holds the box `whole` of a tensor and parts of it that lie one after the
// other, as collectives send and receive them.

/// Which element of `whole`, row-major, the first of `part` is.
[[nodiscard]] std::int64_t index_in(const mesh::Box& whole, const mesh::Box& part);

/// Elements of each part.
[[nodiscard]] std::vector<std::int64_t> counts(const std::vector<mesh::Box>& parts);

/// `part` out of `whole`, to consecutive elements from `to` on.
[[nodiscard]] Copy gather_copy(const std::vector<std::int64_t>& shape, const mesh::Box& whole, const mesh::Box& part,
                               std::int64_t to);

/// The parts out of `whole`; those without elements are left out.
[[nodiscard]] std::vector<Copy> pack(const std::vector<std::int64_t>& shape, const mesh::Box& whole,
                                     const std::vector<mesh::Box>& parts);

/// The parts into `whole`.
[[nodiscard]] std::vector<Copy> unpack(const std::vector<std::int64_t>& shape, const mesh::Box& whole,
                                       const std::vector<mesh::Box>& parts);

}  // namespace shardrun::partition
