#include "core/partition/parts.h"

#include <algorithm>
#include <cstdlib>

namespace shardrun::partition {
namespace {

/// The parts of all members of a rank's group along `axis`, which splits dimension `dim` (or the flattened elements).
/// `box`: the rank's own part, whose other dimensions all parts share.
Blocks blocks_along(mesh::AxisId axis, const std::vector<std::int64_t>& shape, const mesh::Placement& placement,
                    std::size_t dim, const mesh::Box& box, const mesh::Mesh& mesh, mesh::Coordinates at) {
  Blocks blocks{.box = box, .dim = dim};
  const std::int64_t size = dim == mesh::flattened ? mesh::Box{box.origin, box.shape}.elements() : shape[dim];
  blocks.along.reserve(static_cast<std::size_t>(mesh.size(axis)));
  for (std::int64_t& member = at[axis] = 0; member < mesh.size(axis); ++member) {
    blocks.along.push_back(mesh::interval_of(size, placement, dim, mesh, at));
  }
  return blocks;
}

/// Cuts the blocks to `box`.
Blocks within(const mesh::Box& box, Blocks blocks) {
  blocks.box = common(box, blocks.box);
  for (mesh::Interval& interval : blocks.along) {
    interval = common(along(box, blocks.dim), interval);
  }
  return blocks;
}

/// The indices of one member's result that come from another member's operand by a shift. `result`: the first member's
/// indices. `source`: the second member's indices. The returned indices are one interval even if the shift wraps,
/// because two shards of a dimension are together at most all of it.
mesh::Interval missing_from(mesh::Interval result, mesh::Interval source, const Window& shift, std::int64_t size) {
  mesh::Interval missing{result.begin, result.begin};
  const std::int64_t around = shift.wraps ? std::abs(shift.first) / size + 1 : 0;
  for (std::int64_t turn = -around; turn <= around; ++turn) {
    const std::int64_t moved = turn * size - shift.first;
    const std::int64_t begin = std::max(result.begin, source.begin + moved);
    const std::int64_t end = std::min(result.end, source.end + moved);
    if (begin < end) {
      missing = {begin, end};
    }
  }
  return missing;
}

/// The indices of the operand from which the result's indices `missing` are computed.
mesh::Interval origin_of(mesh::Interval missing, const Window& shift, std::int64_t size) {
  const std::int64_t from = missing.begin + shift.first;
  const std::int64_t begin = shift.wraps ? (from % size + size) % size : from;
  return {begin, begin + missing.size()};
}

/// A halo exchange. Each member sends the elements of its operand that other members' results need. Sent blocks are
/// parts of the operand; received blocks are parts of the result.
Parts halos(const Window& shift, std::int64_t size, const Blocks& sources, const Blocks& results, std::size_t me) {
  Parts parts{.collective = Collective::halo,
              .sent = {sources.box, sources.dim},
              .received = {results.box, results.dim},
              .packed = true,
              .unpacked = true};
  const mesh::Interval none{sources.along[me].begin, sources.along[me].begin};
  for (std::size_t member = 0; member < sources.along.size(); ++member) {
    const bool self = member == me;
    const mesh::Interval wanted = self ? none : missing_from(results.along[member], sources.along[me], shift, size);
    const mesh::Interval missing = self ? none : missing_from(results.along[me], sources.along[member], shift, size);
    parts.sent.along.push_back(wanted.size() > 0 ? origin_of(wanted, shift, size) : none);
    parts.received.along.push_back(missing);
  }
  return parts;
}

/// The blocks by which members add up elements of which several have partial sums. Each member sends its values of the
/// elements that are in other members' results. Sent blocks are parts of the operand; received blocks are added to
/// parts of the result.
Parts shared_parts(const Blocks& sources, const Blocks& results, std::size_t me) {
  Parts parts{.collective = Collective::all_to_all,
              .sent = {sources.box, sources.dim},
              .received = {results.box, results.dim},
              .packed = true,
              .unpacked = true};
  for (std::size_t member = 0; member < sources.along.size(); ++member) {
    const mesh::Interval sent = common(sources.along[me], results.along[member]);
    const mesh::Interval received = common(results.along[me], sources.along[member]);
    const bool self = member == me;
    parts.sent.along.push_back(self ? mesh::Interval{sent.begin, sent.begin} : sent);
    parts.received.along.push_back(self ? mesh::Interval{received.begin, received.begin} : received);
  }
  return parts;
}

}  // namespace

graph::TensorType part_type(const graph::TensorType& whole, const mesh::Box& part) {
  return {whole.dtype, part.part_shape(), part.run ? std::vector<std::string>{""} : whole.axes};
}

Parts parts_of(const Transition& transition, const std::vector<std::int64_t>& shape, const mesh::Placement& from,
               const mesh::Placement& to, const mesh::Mesh& mesh, const mesh::Coordinates& at) {
  const mesh::Box source = mesh::box_of(shape, from, mesh, at);
  const mesh::Box result = mesh::box_of(shape, to, mesh, at);
  const auto sources = [&](std::size_t dim) {
    return blocks_along(transition.axis, shape, from, dim, source, mesh, at);
  };
  const auto results = [&] { return blocks_along(transition.axis, shape, to, transition.dim, result, mesh, at); };
  switch (transition.kind) {
    case Transition::Kind::reduce_scatter: {
      const Blocks blocks = results();
      return {Collective::reduce_scatter, blocks, blocks, !mesh::leads(source.shape, transition.dim), false};
    }
    case Transition::Kind::all_gather:
      return {Collective::all_gather, {}, sources(transition.dim), false, !mesh::leads(result.shape, transition.dim)};
    case Transition::Kind::all_to_all:
      return {Collective::all_to_all, within(source, results()), within(result, sources(transition.from_dim)),
              !mesh::leads(source.shape, transition.dim), !mesh::leads(result.shape, transition.from_dim)};
    case Transition::Kind::exchange:
      return halos(from.halos == to.halos ? transition.halo->window : Window{}, shape[transition.dim],
                   sources(transition.dim), results(), static_cast<std::size_t>(at[transition.axis]));
    case Transition::Kind::add_shared:
      return shared_parts(sources(transition.dim), results(), static_cast<std::size_t>(at[transition.axis]));
    default: return {};
  }
}

}  // namespace shardrun::partition
