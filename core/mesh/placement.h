#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/reduction.h"
#include "core/base/window.h"
#include "core/mesh/mesh.h"

namespace shardrun::mesh {

/// A deferred reduction along an axis: each rank holds a partial value.
struct Partial {
  AxisId axis = {};
  Reduction reduction = Reduction::sum;

  bool operator==(const Partial&) const = default;
  auto operator<=>(const Partial&) const = default;
};

/// The interval of a split dimension that a rank has instead of its own part. Another dimension, of `size` indices, is
/// split over the same axes. The rank has the indices that its part of this other dimension reads through the window.
/// Indices outside the rank's own part come from
/// - the ranks that have them, if the value is split already: an exchange;
/// - the rank itself, if it has the whole value: a slice. If the value varies over the axis, each rank then reads its
///   own version of these elements, not that of the rank to which they belong.
struct Halo {
  std::size_t dim = 0;
  Window window = {};
  std::int64_t size = 0;

  auto operator<=>(const Halo&) const = default;

  /// Whether intervals of neighbours can have indices in common.
  [[nodiscard]] bool overlaps() const noexcept { return window.first != window.last; }
  /// The halo that reads only one index of each window, so that no index is on two ranks: index i itself, or the one
  /// nearest to it. If windows contain 0 and both dimensions have as many indices, each index is on one rank. REQUIRES:
  /// stride 1.
  [[nodiscard]] Halo own() const noexcept {
    const std::int64_t at = std::clamp<std::int64_t>(0, window.first, window.last);
    return {dim, {window.stride, window.divisor, at, at, window.wraps}, size};
  }
};

/// This stands for a dimension's number, and means all elements in row-major order, as if they were one dimension.
inline constexpr std::size_t flattened = SIZE_MAX;

/// Where a tensor is. A mesh axis
/// - splits a dimension (`dims`: per dimension, major to minor; splits nest),
/// - or splits the row-major elements that these splits leave (`flat`),
/// - or is one over which the value is partial (`partial`),
/// - or is one over which each rank has its own value on purpose (`varying`); such a value can be partial over it, too,
/// - or, in all other cases, is one along which the value is replicated.
/// An axis occurs only once, with two exceptions. It can be in both `varying` and `partial`. And an axis that splits a
/// dimension with a halo can be in `partial`: an element is then the sum over the ranks whose halos have its index.
struct Placement {
  std::vector<std::vector<AxisId>> dims;
  std::vector<AxisId> flat = {};      ///< these split the row-major elements that `dims` leave to a rank
  std::vector<Partial> partial = {};  ///< sorted by axis
  std::vector<AxisId> varying = {};   ///< sorted
  std::vector<Halo> halos = {};       ///< sorted by dimension

  bool operator==(const Placement&) const = default;
  auto operator<=>(const Placement&) const = default;

  /// The axes that split a dimension, or the `flattened` elements.
  [[nodiscard]] std::vector<AxisId>& along(std::size_t dim) { return dim == flattened ? flat : dims[dim]; }
  [[nodiscard]] const std::vector<AxisId>& along(std::size_t dim) const { return dim == flattened ? flat : dims[dim]; }

  [[nodiscard]] bool splits(AxisId axis) const noexcept;
  [[nodiscard]] bool is_partial(AxisId axis) const noexcept;
  /// The placement with Halo::own() of each halo, so that no index is on two ranks. REQUIRES: as Halo::own().
  [[nodiscard]] Placement own() const;
  /// The halo along a dimension, or null.
  [[nodiscard]] const Halo* halo(std::size_t dim) const noexcept;
  [[nodiscard]] bool varies(AxisId axis) const noexcept;
};

[[nodiscard]] Placement replicated(std::size_t rank);

/// Whether parts along a dimension are contiguous in a row-major tensor, because all earlier dimensions have size 1.
/// Parts of flattened elements always are.
[[nodiscard]] bool leads(const std::vector<std::int64_t>& shape, std::size_t dim) noexcept;

/// The placement with the axes' names: "[data | - | model] partial sum model", or "[- | model] flat data"; "replicated"
/// for a scalar.
[[nodiscard]] std::string to_string(const Placement& placement, const Mesh& mesh);

/// The indices from `begin` to `end` - 1.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  bool operator==(const Interval&) const = default;
  [[nodiscard]] std::int64_t size() const noexcept { return end - begin; }
};

/// Part `index` of an interval divided into `parts`. Sizes differ by at most one; larger parts come first.
[[nodiscard]] Interval part_of(Interval whole, std::int64_t parts, std::int64_t index) noexcept;

/// The indices of a dimension of `size` that the rank at these coordinates has: its part or, if there is a halo, the
/// halo's interval. `dim` can be `flattened`.
[[nodiscard]] Interval interval_of(std::int64_t size, const Placement& placement, std::size_t dim, const Mesh& mesh,
                                   const Coordinates& coordinates);

/// The indices of a dimension of `size`, split over `axes`, that the rank at these coordinates has.
[[nodiscard]] Interval shard_of(std::int64_t size, const std::vector<AxisId>& axes, const Mesh& mesh,
                                const Coordinates& coordinates);

/// A rank's part of a tensor: a box, or a run of the box's elements in row-major order.
struct Box {
  std::vector<std::int64_t> origin;
  std::vector<std::int64_t> shape;
  std::optional<Interval> run = {};

  bool operator==(const Box&) const = default;
  [[nodiscard]] std::int64_t elements() const noexcept;
  /// The shape in memory. A run has one dimension.
  [[nodiscard]] std::vector<std::int64_t> part_shape() const;
  /// Whether the part has the element with these indices in the whole tensor.
  [[nodiscard]] bool contains(const std::vector<std::int64_t>& indices) const noexcept;
  /// The row-major index, in a whole tensor of this shape, of the part's element number `local`.
  [[nodiscard]] std::int64_t index_in_whole(const std::vector<std::int64_t>& whole, std::int64_t local) const noexcept;
};

[[nodiscard]] Box box_of(const std::vector<std::int64_t>& shape, const Placement& placement, const Mesh& mesh,
                         const Coordinates& coordinates);

}  // namespace shardrun::mesh
