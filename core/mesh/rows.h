#pragma once

#include <cstdint>
#include <vector>

#include "core/mesh/placement.h"

namespace shardrun::mesh {

/// Elements that are consecutive in a part and in the whole tensor.
struct Row {
  std::int64_t whole = 0;  ///< row-major index of the first element in the whole
  std::int64_t local = 0;  ///< row-major index of the first element in the part
  std::int64_t count = 0;

  bool operator==(const Row&) const = default;
};

/// The rows of a part, each as long as possible. Both indices grow from row to row. `whole`: the whole tensor's shape.
[[nodiscard]] std::vector<Row> rows_of(const std::vector<std::int64_t>& whole, const Box& box);

/// Elements that two parts of a tensor share, and that are consecutive in both.
struct SharedRow {
  std::int64_t in_first = 0;  ///< index of the first element in the first part
  std::int64_t in_second = 0;
  std::int64_t count = 0;

  bool operator==(const SharedRow&) const = default;
};

/// The elements that two parts share, in order. `first`, `second`: the parts' rows.
[[nodiscard]] std::vector<SharedRow> shared_rows(const std::vector<Row>& first, const std::vector<Row>& second);

/// Whether all elements of a part are elements of a tensor of shape `whole`.
[[nodiscard]] bool lies_within(const Box& box, const std::vector<std::int64_t>& whole) noexcept;

/// Whether two parts can share elements, because their boxes overlap. Runs are not considered.
[[nodiscard]] bool overlap(const Box& first, const Box& second) noexcept;

}  // namespace shardrun::mesh
