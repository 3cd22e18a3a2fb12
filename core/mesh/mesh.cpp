#include "core/mesh/mesh.h"

#include <utility>

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

void Mesh::set_order(std::vector<std::int64_t> rank_at_place) {
  order = std::move(rank_at_place);
  places.assign(order.size(), 0);
  for (std::size_t place = 0; place < order.size(); ++place) {
    places[static_cast<std::size_t>(order[place])] = static_cast<std::int64_t>(place);
  }
}

Coordinates coordinates_of(const Mesh& mesh, std::int64_t rank) {
  std::int64_t place = mesh.places.empty() ? rank : mesh.places[static_cast<std::size_t>(rank)];
  Coordinates coordinates(mesh.axes.size(), 0);
  for (std::size_t a = mesh.axes.size(); a-- > 0;) {
    const AxisId axis(a);
    coordinates[axis] = place % mesh.size(axis);
    place /= mesh.size(axis);
  }
  return coordinates;
}

std::int64_t rank_at(const Mesh& mesh, const Coordinates& coordinates) {
  std::int64_t place = 0;
  for (const AxisId axis : mesh.axes.ids()) {
    place = place * mesh.size(axis) + coordinates[axis];
  }
  return mesh.order.empty() ? place : mesh.order[static_cast<std::size_t>(place)];
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
