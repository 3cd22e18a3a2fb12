#pragma once

#include <cstdint>
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

/// Where a tensor is: of each dimension the mesh axes that split it, major to minor (splits nest), the axes over which
/// it is partial, and those over which it varies: each rank has a value of its own there, on purpose. Along every other
/// axis it is replicated. A mesh axis occurs once, but that what varies may be partial too.
struct Placement {
  std::vector<std::vector<AxisId>> dims;
  std::vector<Owed> partial = {};    ///< sorted by axis
  std::vector<AxisId> varying = {};  ///< sorted

  bool operator==(const Placement&) const = default;
  auto operator<=>(const Placement&) const = default;

  [[nodiscard]] bool splits(AxisId axis) const noexcept;
  [[nodiscard]] bool owes(AxisId axis) const noexcept;
  [[nodiscard]] bool varies(AxisId axis) const noexcept;
};

[[nodiscard]] Placement replicated(std::size_t rank);

/// Whether parts of a row-major tensor along a dimension lie one after the other: nothing before it has more than one
/// index.
[[nodiscard]] bool leads(const std::vector<std::int64_t>& shape, std::size_t dim) noexcept;

/// "[data | - | model] partial sum model", by the axes' names; "replicated" for a scalar.
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

/// A rank's share of a tensor.
struct Box {
  std::vector<std::int64_t> origin;
  std::vector<std::int64_t> shape;

  bool operator==(const Box&) const = default;
  [[nodiscard]] std::int64_t elements() const noexcept;
};

[[nodiscard]] Box box_of(const std::vector<std::int64_t>& shape, const Placement& placement, const Mesh& mesh,
                         const Coordinates& coordinates);

}  // namespace shardrun::mesh
