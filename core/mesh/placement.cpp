#include "core/mesh/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace shardrun::mesh {

bool Placement::splits(AxisId axis) const noexcept {
  const auto has = [&](const auto& axes) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); };
  return has(flat) || std::any_of(dims.begin(), dims.end(), has);
}

bool Placement::is_partial(AxisId axis) const noexcept {
  return std::any_of(partial.begin(), partial.end(), [&](const Partial& each) { return each.axis == axis; });
}

Placement Placement::own() const {
  Placement owned = *this;
  std::ranges::transform(owned.halos, owned.halos.begin(), &Halo::own);
  return owned;
}

const Halo* Placement::halo(std::size_t dim) const noexcept {
  const auto found = std::ranges::find(halos, dim, &Halo::dim);
  return found == halos.end() ? nullptr : &*found;
}

bool Placement::varies(AxisId axis) const noexcept {
  return std::find(varying.begin(), varying.end(), axis) != varying.end();
}

bool leads(const std::vector<std::int64_t>& shape, std::size_t dim) noexcept {
  return dim == flattened ||
         std::ranges::all_of(std::span(shape).first(dim), [](std::int64_t size) { return size == 1; });
}

Placement replicated(std::size_t rank) { return {.dims = std::vector<std::vector<AxisId>>(rank)}; }

namespace {

std::string names_of(const std::vector<AxisId>& axes, const Mesh& mesh) {
  std::string text;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    text += fmt::format("{}{}", a == 0 ? "" : ",", mesh.axes[axes[a]].name);
  }
  return text;
}

}  // namespace

std::string to_string(const Placement& placement, const Mesh& mesh) {
  std::string text;
  for (const std::vector<AxisId>& axes : placement.dims) {
    text += text.empty() ? "" : " | ";
    text += axes.empty() ? "-" : names_of(axes, mesh);
  }
  text = text.empty() ? "replicated" : "[" + text + "]";
  if (!placement.flat.empty()) {
    text += " flat " + names_of(placement.flat, mesh);
  }
  for (const Partial& each : placement.partial) {
    text += fmt::format(" partial {} {}", to_string(each.reduction), mesh.axes[each.axis].name);
  }
  for (const AxisId axis : placement.varying) {
    text += fmt::format(" varying {}", mesh.axes[axis].name);
  }
  for (const Halo& halo : placement.halos) {
    text += fmt::format(" halo of dimension {}", halo.dim);
  }
  return text;
}

Interval part_of(Interval whole, std::int64_t parts, std::int64_t index) noexcept {
  const std::int64_t each = whole.size() / parts;
  const std::int64_t larger = whole.size() % parts;
  const std::int64_t begin = whole.begin + index * each + std::min(index, larger);
  return {begin, begin + each + (index < larger ? 1 : 0)};
}

Interval shard_of(std::int64_t size, const std::vector<AxisId>& axes, const Mesh& mesh,
                  const Coordinates& coordinates) {
  Interval interval{0, size};
  for (const AxisId axis : axes) {
    interval = part_of(interval, mesh.size(axis), coordinates[axis]);
  }
  return interval;
}

Interval interval_of(std::int64_t size, const Placement& placement, std::size_t dim, const Mesh& mesh,
                     const Coordinates& coordinates) {
  const Halo* halo = placement.halo(dim);
  if (halo == nullptr) {
    return shard_of(size, placement.along(dim), mesh, coordinates);
  }
  const Interval part = shard_of(halo->size, placement.along(dim), mesh, coordinates);
  const auto [begin, end] = halo->window.reads(part.begin, part.end, size);
  return {begin, end};
}

namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count *= size;
  }
  return count;
}

}  // namespace

std::int64_t Box::elements() const noexcept { return run ? run->size() : product(shape); }

std::vector<std::int64_t> Box::part_shape() const { return run ? std::vector{run->size()} : shape; }

bool Box::contains(const std::vector<std::int64_t>& indices) const noexcept {
  std::int64_t local = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t index = indices[d] - origin[d];
    if (index < 0 || index >= shape[d]) {
      return false;
    }
    local = local * shape[d] + index;
  }
  return !run || (local >= run->begin && local < run->end);
}

std::int64_t Box::index_in_whole(const std::vector<std::int64_t>& whole, std::int64_t local) const noexcept {
  std::int64_t rest = local + (run ? run->begin : 0);
  std::int64_t index = 0;
  std::int64_t stride = 1;
  for (std::size_t d = whole.size(); d-- > 0;) {
    index += (origin[d] + rest % shape[d]) * stride;
    stride *= whole[d];
    rest /= shape[d];
  }
  return index;
}

Box box_of(const std::vector<std::int64_t>& shape, const Placement& placement, const Mesh& mesh,
           const Coordinates& coordinates) {
  Box box;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const Interval interval = interval_of(shape[d], placement, d, mesh, coordinates);
    box.origin.push_back(interval.begin);
    box.shape.push_back(interval.size());
  }
  if (!placement.flat.empty()) {
    box.run = shard_of(box.elements(), placement.flat, mesh, coordinates);
  }
  return box;
}

}  // namespace shardrun::mesh
