#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/id.h"

namespace shardrun::mesh {

/// The index of an axis of the mesh.
using AxisId = Id<struct AxisTag>;

struct Axis {
  std::string name;
  std::int64_t size = 1;

  bool operator==(const Axis&) const = default;
};

/// The ranks in a grid of places. The coordinate along the last axis changes fastest from place to place.
struct Mesh {
  IdVector<AxisId, Axis> axes;
  std::vector<std::int64_t> order{};   ///< the rank at each place; empty: each rank has its own number as place
  std::vector<std::int64_t> places{};  ///< the place of each rank; empty: as for `order`

  bool operator==(const Mesh&) const = default;

  [[nodiscard]] std::int64_t ranks() const noexcept;
  [[nodiscard]] std::int64_t size(AxisId axis) const { return axes[axis].size; }
  /// Finds an axis by name. Returns the default id if there is none.
  [[nodiscard]] AxisId find(std::string_view name) const noexcept;
  /// Sets the order. REQUIRES: it is a permutation of the ranks, or empty.
  void set_order(std::vector<std::int64_t> rank_at_place);
};

/// A rank's place: one number per axis.
using Coordinates = IdVector<AxisId, std::int64_t>;

[[nodiscard]] Coordinates coordinates_of(const Mesh& mesh, std::int64_t rank);
[[nodiscard]] std::int64_t rank_at(const Mesh& mesh, const Coordinates& coordinates);

/// The ranks that differ from `rank` only along `axis`, and `rank` itself, in order of their coordinates along `axis`.
[[nodiscard]] std::vector<std::int64_t> line_through(const Mesh& mesh, AxisId axis, std::int64_t rank);

}  // namespace shardrun::mesh
