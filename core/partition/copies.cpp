#include "core/partition/copies.h"

#include <algorithm>
#include <utility>

namespace shardrun::partition {
namespace {

std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d];
  }
  return strides;
}

}  // namespace

std::int64_t index_in(const mesh::Box& whole, const mesh::Box& part) {
  if (part.run) {
    return part.run->begin - (whole.run ? whole.run->begin : 0);
  }
  const std::vector<std::int64_t> strides = strides_of(whole.shape);
  std::int64_t at = 0;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    at += (part.origin[d] - whole.origin[d]) * strides[d];
  }
  return at;
}

mesh::Interval common(mesh::Interval a, mesh::Interval b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

mesh::Interval along(const mesh::Box& box, std::size_t dim) {
  return {box.origin[dim], box.origin[dim] + box.shape[dim]};
}

mesh::Box common(const mesh::Box& a, const mesh::Box& b) {
  mesh::Box box;
  for (std::size_t d = 0; d < a.origin.size(); ++d) {
    const mesh::Interval both = common(along(a, d), along(b, d));
    box.origin.push_back(both.begin);
    box.shape.push_back(both.size());
  }
  return box;
}

mesh::Box Blocks::at(std::size_t member) const {
  mesh::Box part = box;
  if (dim == mesh::flattened) {
    part.run = along[member];
    return part;
  }
  part.origin[dim] = along[member].begin;
  part.shape[dim] = along[member].size();
  return part;
}

std::vector<std::int64_t> counts(const Blocks& parts) {
  std::int64_t each = 1;  // number of elements per index of `dim`
  for (std::size_t d = 0; d < parts.box.shape.size() && parts.dim != mesh::flattened; ++d) {
    each *= d == parts.dim ? 1 : parts.box.shape[d];
  }
  std::vector<std::int64_t> counts;
  counts.reserve(parts.along.size());
  for (const mesh::Interval& interval : parts.along) {
    counts.push_back(each * interval.size());
  }
  return counts;
}

Copy gather_copy(const std::vector<std::int64_t>& shape, const mesh::Box& whole, const mesh::Box& part,
                 std::int64_t to) {
  if (part.run) {
    return {
        .from = index_in(whole, part), .to = to, .shape = part.part_shape(), .from_strides = {1}, .to_strides = {1}};
  }
  return {.from = index_in(whole, part),
          .to = to,
          .shape = part.shape,
          .from_strides = strides_of(shape),
          .to_strides = strides_of(part.shape)};
}

Copy shared_copy(const mesh::Box& from, const mesh::Box& to) {
  const mesh::Box both = common(from, to);
  return {.from = index_in(from, both),
          .to = index_in(to, both),
          .shape = both.shape,
          .from_strides = strides_of(from.shape),
          .to_strides = strides_of(to.shape)};
}

std::vector<Copy> pack(const std::vector<std::int64_t>& shape, const mesh::Box& whole, const Blocks& parts) {
  std::vector<Copy> copies;
  std::int64_t to = 0;
  for (std::size_t member = 0; member < parts.along.size(); ++member) {
    const mesh::Box part = parts.at(member);
    if (part.elements() > 0) {
      copies.push_back(gather_copy(shape, whole, part, to));
    }
    to += part.elements();
  }
  return copies;
}

std::vector<Copy> unpack(const std::vector<std::int64_t>& shape, const mesh::Box& whole, const Blocks& parts) {
  std::vector<Copy> copies = pack(shape, whole, parts);
  for (Copy& copy : copies) {
    std::swap(copy.from, copy.to);
    std::swap(copy.from_strides, copy.to_strides);
  }
  return copies;
}

}  // namespace shardrun::partition
