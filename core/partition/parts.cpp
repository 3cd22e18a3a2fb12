#include "core/partition/parts.h"

#include <algorithm>

namespace shardrun::partition {
namespace {

/// Whether parts along a dimension lie one after the other: nothing before it has more than one index.
bool leads(const std::vector<std::int64_t>& shape, std::size_t dim) {
  return std::all_of(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(dim),
                     [](std::int64_t size) { return size == 1; });
}

mesh::Box common(const mesh::Box& a, const mesh::Box& b) {
  mesh::Box box;
  for (std::size_t d = 0; d < a.origin.size(); ++d) {
    const std::int64_t begin = std::max(a.origin[d], b.origin[d]);
    const std::int64_t end = std::min(a.origin[d] + a.shape[d], b.origin[d] + b.shape[d]);
    box.origin.push_back(begin);
    box.shape.push_back(std::max<std::int64_t>(0, end - begin));
  }
  return box;
}

/// Of each member of the group along `axis`.
std::vector<mesh::Box> boxes_along(mesh::AxisId axis, const std::vector<std::int64_t>& shape,
                                   const mesh::Placement& placement, const mesh::Mesh& mesh, mesh::Coordinates at) {
  std::vector<mesh::Box> boxes;
  for (std::int64_t& member = at[static_cast<std::size_t>(axis)] = 0; member < mesh.size(axis); ++member) {
    boxes.push_back(mesh::box_of(shape, placement, mesh, at));
  }
  return boxes;
}

}  // namespace

Parts parts_of(const Transition& transition, const std::vector<std::int64_t>& shape, const mesh::Placement& from,
               const mesh::Placement& to, const mesh::Mesh& mesh, const mesh::Coordinates& at) {
  const std::vector<mesh::Box> sources = boxes_along(transition.axis, shape, from, mesh, at);
  const std::vector<mesh::Box> results = boxes_along(transition.axis, shape, to, mesh, at);
  const mesh::Box source = mesh::box_of(shape, from, mesh, at);
  const mesh::Box result = mesh::box_of(shape, to, mesh, at);
  switch (transition.kind) {
    case Transition::Kind::reduce_scatter:
      return {Collective::reduce_scatter, results, results, !leads(source.shape, transition.dim), false};
    case Transition::Kind::all_gather:
      return {Collective::all_gather, {}, sources, false, !leads(result.shape, transition.dim)};
    case Transition::Kind::all_to_all: {
      Parts parts{.collective = Collective::all_to_all,
                  .packed = !leads(source.shape, transition.dim),
                  .unpacked = !leads(result.shape, transition.from_dim)};
      for (std::size_t member = 0; member < sources.size(); ++member) {
        parts.sent.push_back(common(source, results[member]));
        parts.received.push_back(common(result, sources[member]));
      }
      return parts;
    }
    default: return {};
  }
}

}  // namespace shardrun::partition
