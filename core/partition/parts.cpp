#include "core/partition/parts.h"

#include <algorithm>
#include <cstdlib>

namespace shardrun::partition {
namespace {

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

/// The box with `interval` of a dimension.
mesh::Box with(mesh::Box box, std::size_t dim, mesh::Interval interval) {
  box.origin[dim] = interval.begin;
  box.shape[dim] = interval.size();
  return box;
}

mesh::Interval along(const mesh::Box& box, std::size_t dim) {
  return {box.origin[dim], box.origin[dim] + box.shape[dim]};
}

/// The indices of a shifted result that the one who has `result` makes of those that another has, `source`, and does
/// not have itself. They are in one piece: two shards of a dimension are no more than all of it.
mesh::Interval missing_from(mesh::Interval result, mesh::Interval source, const Transition& shift, std::int64_t size) {
  mesh::Interval missing{result.begin, result.begin};
  const std::int64_t around = shift.wraps ? std::abs(shift.offset) / size + 1 : 0;
  for (std::int64_t turn = -around; turn <= around; ++turn) {
    const std::int64_t moved = turn * size - shift.offset;
    const std::int64_t begin = std::max(result.begin, source.begin + moved);
    const std::int64_t end = std::min(result.end, source.end + moved);
    if (begin < end) {
      missing = {begin, end};
    }
  }
  return missing;
}

/// Of the indices in `missing` those of the operand that they are made of.
mesh::Interval origin_of(mesh::Interval missing, const Transition& shift, std::int64_t size) {
  const std::int64_t from = missing.begin + shift.offset;
  const std::int64_t begin = shift.wraps ? (from % size + size) % size : from;
  return {begin, begin + missing.size()};
}

/// Each member sends what the others' results are made of and they do not have; what is sent is a part of the operand,
/// what is received one of the result.
Parts halos(const Transition& shift, std::int64_t size, const std::vector<mesh::Box>& boxes, std::size_t me) {
  Parts parts{.collective = Collective::all_to_all, .packed = true, .unpacked = true};
  const std::size_t dim = shift.dim;
  const mesh::Box& mine = boxes[me];
  const mesh::Interval none{mine.origin[dim], mine.origin[dim]};
  for (std::size_t member = 0; member < boxes.size(); ++member) {
    const mesh::Interval own = along(mine, dim);
    const mesh::Interval theirs = along(boxes[member], dim);
    const mesh::Interval wanted = member == me ? none : missing_from(theirs, own, shift, size);
    const mesh::Interval missing = member == me ? none : missing_from(own, theirs, shift, size);
    parts.sent.push_back(with(mine, dim, wanted.size() > 0 ? origin_of(wanted, shift, size) : none));
    parts.received.push_back(with(mine, dim, missing));
  }
  return parts;
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
      return {Collective::reduce_scatter, results, results, !mesh::leads(source.shape, transition.dim), false};
    case Transition::Kind::all_gather:
      return {Collective::all_gather, {}, sources, false, !mesh::leads(result.shape, transition.dim)};
    case Transition::Kind::all_to_all: {
      Parts parts{.collective = Collective::all_to_all,
                  .packed = !mesh::leads(source.shape, transition.dim),
                  .unpacked = !mesh::leads(result.shape, transition.from_dim)};
      for (std::size_t member = 0; member < sources.size(); ++member) {
        parts.sent.push_back(common(source, results[member]));
        parts.received.push_back(common(result, sources[member]));
      }
      return parts;
    }
    case Transition::Kind::exchange:
      return halos(transition, shape[transition.dim], sources,
                   static_cast<std::size_t>(at[static_cast<std::size_t>(transition.axis)]));
    default: return {};
  }
}

}  // namespace shardrun::partition
