#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/reduction.h"
#include "core/mesh/mesh.h"

namespace shardrun::mesh {

/// A reduction that is still owed along an axis: each rank holds a part of the value.
struct Owed {
  AxisId axis = -1;
  Reduction reduction = Reduction::sum;

  bool operator==(const Owed&) const = default;
  auto operator<=>(const Owed&) const = default;
};

/// In place of a dimension: the elements in row-major order, as if the tensor had one dimension.
inline constexpr std::size_t flattened = SIZE_MAX;

/// Where a tensor is: of each dimension the mesh axes that split it, major to minor (splits nest), the axes that split
/// what these leave as one row of elements, the axes over which it is partial, and those over which it varies: each
/// rank has a value of its own there, on purpose. Along every other axis it is replicated. A mesh axis occurs once, but
/// that what varies may be partial too.
struct Placement {
  std::vector<std::vector<AxisId>> dims;
  std::vector<AxisId> flat = {};     ///< of the elements that `dims` leave a rank, in row-major order
  std::vector<Owed> partial = {};    ///< sorted by axis
  std::vector<AxisId> varying = {};  ///< sorted

  bool operator==(const Placement&) const = default;
  auto operator<=>(const Placement&) const = default;

  /// What splits a dimension, or the `flattened` elements.
  [[nodiscard]] std::vector<AxisId>& along(std::size_t dim) { return dim == flattened ? flat : dims[dim]; }
  [[nodiscard]] const std::vector<AxisId>& along(std::size_t dim) const { return dim == flattened ? flat : dims[dim]; }

  [[nodiscard]] bool splits(AxisId axis) const noexcept;
  [[nodiscard]] bool owes(AxisId axis) const noexcept;
  [[nodiscard]] bool varies(AxisId axis) const noexcept;
};

[[nodiscard]] Placement replicated(std::size_t rank);

/// Whether parts of a row-major tensor along a dimension lie one after the other: nothing before it has more than one
/// index. Those of its flattened elements always do.
[[nodiscard]] bool leads(const std::vector<std::int64_t>& shape, std::size_t dim) noexcept;

/// "[data | - | model] partial sum model", by the axes' names, or "[- | model] flat data"; "replicated" for a scalar.
[[nodiscard]] std::string to_string(const Placement& placement, const Mesh& mesh);

/// Indices from `begin` up to, not including, `end`.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const Interval&) const = default;
  [[nodiscard]] std::int64_t size() const noexcept { return end - begin; }
};

/// Part `index` of `parts` of an interval: sizes differ by at most one, the larger parts come first.
[[nodiscard]] Interval part_of(Interval whole, std::int64_t parts, std::int64_t index) noexcept;

/// The indices of a dimension of `size` that a rank at these coordinates has, split over `axes`.
[[nodiscard]] Interval shard_of(std::int64_t size, const std::vector<AxisId>& axes, const Mesh& mesh,
                                const Coordinates& coordinates);

/// A rank's share of a tensor: a box, or a run of the box's elements in row-major order.
struct Box {
  std::vector<std::int64_t> origin;
  std::vector<std::int64_t> shape;
  std::optional<Interval> run = {};

  bool operator==(const Box&) const = default;
  [[nodiscard]] std::int64_t elements() const noexcept;
  /// As it lies in memory: a run has one dimension.
  [[nodiscard]] std::vector<std::int64_t> part_shape() const;
  /// `indices`: of an element of the whole tensor.
  [[nodiscard]] bool contains(const std::vector<std::int64_t>& indices) const noexcept;
  /// The number of the share's element `local` in the whole tensor, which has this shape. Both are row-major.
  [[nodiscard]] std::int64_t index_in_whole(const std::vector<std::int64_t>& whole, std::int64_t local) const noexcept;
};

[[nodiscard]] Box box_of(const std::vector<std::int64_t>& shape, const Placement& placement, const Mesh& mesh,
                         const Coordinates& coordinates);

}  // namespace shardrun::mesh
