#include "core/mesh/mesh.h"

namespace shardrun::mesh {

std::int64_t Mesh::ranks() const noexcept {
  std::int64_t ranks = 1;
  for (const Axis& axis : axes) {
    ranks *= axis.size;
  }
  return ranks;
}

AxisId Mesh::find(std::string_view name) const noexcept {
  for (const AxisId axis : axes.ids()) {
    if (axes[axis].name == name) {
      return axis;
    }
  }
  return {};
}

Coordinates coordinates_of(const Mesh& mesh, std::int64_t rank) {
  Coordinates coordinates(mesh.axes.size(), 0);
  for (std::size_t a = mesh.axes.size(); a-- > 0;) {
    const AxisId axis(a);
    coordinates[axis] = rank % mesh.size(axis);
    rank /= mesh.size(axis);
  }
  return coordinates;
}

std::int64_t rank_at(const Mesh& mesh, const Coordinates& coordinates) {
  std::int64_t rank = 0;
  for (const AxisId axis : mesh.axes.ids()) {
    rank = rank * mesh.size(axis) + coordinates[axis];
  }
  return rank;
}

std::vector<std::int64_t> line_through(const Mesh& mesh, AxisId axis, std::int64_t rank) {
  Coordinates coordinates = coordinates_of(mesh, rank);
  std::vector<std::int64_t> ranks;
  for (std::int64_t c = 0; c < mesh.size(axis); ++c) {
    coordinates[axis] = c;
    ranks.push_back(rank_at(mesh, coordinates));
  }
  return ranks;
}

}  // namespace shardrun::mesh
