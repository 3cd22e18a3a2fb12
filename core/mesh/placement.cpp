#include "core/mesh/placement.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardrun::mesh {

bool Placement::splits(AxisId axis) const noexcept {
  return std::any_of(dims.begin(), dims.end(),
                     [&](const auto& axes) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); });
}

bool Placement::owes(AxisId axis) const noexcept {
  return std::any_of(partial.begin(), partial.end(), [&](const Owed& owed) { return owed.axis == axis; });
}

bool Placement::varies(AxisId axis) const noexcept {
  return std::find(varying.begin(), varying.end(), axis) != varying.end();
}

bool leads(const std::vector<std::int64_t>& shape, std::size_t dim) noexcept {
  return std::all_of(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(dim),
                     [](std::int64_t size) { return size == 1; });
}

Placement replicated(std::size_t rank) { return {.dims = std::vector<std::vector<AxisId>>(rank)}; }

std::string to_string(const Placement& placement, const Mesh& mesh) {
  std::string text;
  for (const std::vector<AxisId>& axes : placement.dims) {
    text += text.empty() ? "" : " | ";
    for (std::size_t a = 0; a < axes.size(); ++a) {
      text += fmt::format("{}{}", a == 0 ? "" : ",", mesh.axes[static_cast<std::size_t>(axes[a])].name);
    }
    text += axes.empty() ? "-" : "";
  }
  text = text.empty() ? "replicated" : "[" + text + "]";
  for (const Owed& owed : placement.partial) {
    text +=
        fmt::format(" partial {} {}", to_string(owed.reduction), mesh.axes[static_cast<std::size_t>(owed.axis)].name);
  }
  for (const AxisId axis : placement.varying) {
    text += fmt::format(" varying {}", mesh.axes[static_cast<std::size_t>(axis)].name);
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
    interval = part_of(interval, mesh.size(axis), coordinates[static_cast<std::size_t>(axis)]);
  }
  return interval;
}

std::int64_t Box::elements() const noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count *= size;
  }
  return count;
}

Box box_of(const std::vector<std::int64_t>& shape, const Placement& placement, const Mesh& mesh,
           const Coordinates& coordinates) {
  Box box;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const Interval interval = shard_of(shape[d], placement.dims[d], mesh, coordinates);
    box.origin.push_back(interval.begin);
    box.shape.push_back(interval.size());
  }
  return box;
}

}  // namespace shardrun::mesh
