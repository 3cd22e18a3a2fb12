#include "core/cli/sharding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/human.h"
#include "core/cli/draw.h"

namespace shardrun::cli {
namespace {

/// With more ranks than this, ranks that have the same part share a line of the table.
constexpr std::int64_t most_ranks_by_line = 16;

/// A line of the table: one rank, or ranks with the same part.
struct Line {
  std::string ranks;
  std::string ranges;
  std::string shape;
  std::int64_t elements;
  std::uint64_t bytes;
  std::string place;
};

/// The places of these ranks as text, without repetitions: "node1 cpu". Unknown fields are "?".
std::string place_text(const std::vector<std::int64_t>& ranks, const std::vector<RankPlace>& places) {
  std::vector<std::string> texts;
  for (const std::int64_t rank : ranks) {
    const RankPlace& place = places[static_cast<std::size_t>(rank)];
    std::string text = fmt::format("{} {}", place.host.empty() ? "?" : place.host, place.device);
    if (std::ranges::find(texts, text) == texts.end()) {
      texts.push_back(std::move(text));
    }
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// The stages that have the tensor: "stages 0, 3 of 4"; empty without a pipeline.
std::string stages_having(const PlacedTensor& tensor) {
  std::vector<std::int32_t> having;
  for (const partition::StageId stage : tensor.stages.ids()) {
    if (tensor.stages[stage]) {
      having.push_back(stage.number());
    }
  }
  return tensor.stages.size() <= 1 ? ""
                                   : fmt::format("{} {} of {}\n", having.size() == 1 ? "stage    " : "stages   ",
                                                 fmt::join(having, ", "), tensor.stages.size());
}

std::vector<Line> lines_of(const std::vector<mesh::Shard>& shards, const std::vector<RankPlace>& places,
                           std::size_t element_bytes) {
  std::vector<std::pair<std::vector<std::int64_t>, const mesh::Box*>> rows;
  for (const mesh::Shard& shard : shards) {
    if (std::ssize(places) > most_ranks_by_line) {
      rows.emplace_back(shard.ranks, &shard.box);
      continue;
    }
    for (const std::int64_t rank : shard.ranks) {
      rows.emplace_back(std::vector{rank}, &shard.box);
    }
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Line> lines;
  for (const auto& [members, box] : rows) {
    lines.push_back({.ranks = mesh::ranks_text(members),
                     .ranges = mesh::ranges_text(*box),
                     .shape = fmt::format("[{}]", fmt::join(box->part_shape(), ", ")),
                     .elements = box->elements(),
                     .bytes = static_cast<std::uint64_t>(box->elements()) * element_bytes,
                     .place = place_text(members, places)});
  }
  return lines;
}

std::string table(const std::vector<Line>& lines) {
  std::size_t ranks = 4;
  std::size_t ranges = 12;
  std::size_t shape = 5;
  for (const Line& line : lines) {
    ranks = std::max(ranks, line.ranks.size());
    ranges = std::max(ranges, line.ranges.size());
    shape = std::max(shape, line.shape.size());
  }
  std::string text = fmt::format("{:>{}}  {:<{}}  {:<{}}  {:>12}  {:>14}  host and device\n", "rank", ranks,
                                 "index ranges", ranges, "shape", shape, "elements", "bytes");
  for (const Line& line : lines) {
    text += fmt::format("{:>{}}  {:<{}}  {:<{}}  {:>12}  {:>14}  {}\n", line.ranks, ranks, line.ranges, ranges,
                        line.shape, shape, line.elements, line.bytes, line.place);
  }
  return text;
}

/// A line for each placement, with all roles that have it.
std::string roles_text(const PlacedTensor& tensor, const mesh::Mesh& mesh) {
  std::vector<std::pair<std::string, std::string>> rows;  // pairs of placement and roles
  for (const PlacedRole& role : tensor.roles) {
    const std::string placement = to_string(role.placement, mesh);
    const auto alike = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.first == placement; });
    if (alike == rows.end()) {
      rows.emplace_back(placement, role.name);
    } else {
      alike->second += ", " + role.name;
    }
  }
  std::string text;
  for (const auto& [placement, roles] : rows) {
    text += rows.size() == 1 ? fmt::format("placement {}\n", placement)
                             : fmt::format("placement {}  {}\n", placement, roles);
  }
  return text;
}

std::string mesh_text(const mesh::Mesh& mesh) {
  std::vector<std::string> axes;
  for (const mesh::Axis& axis : mesh.axes) {
    axes.push_back(fmt::format("{} {}", axis.name, axis.size));
  }
  return fmt::format("{}{}{} {}", fmt::join(axes, " × "), axes.empty() ? "" : " = ", mesh.ranks(),
                     mesh.ranks() == 1 ? "rank" : "ranks");
}

}  // namespace

std::string sharding_text(const PlacedTensor& tensor, const compile::Compiled& compiled,
                          const std::vector<RankPlace>& places, std::size_t width) {
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  const auto bytes = static_cast<std::uint64_t>(graph::element_count(tensor.type)) * tensor.element_bytes();
  const mesh::Placement placement = tensor.roles.empty() ? mesh::Placement() : tensor.roles.front().placement;
  const std::vector<mesh::Shard> shards = shards_of(tensor, compiled);
  std::string text =
      fmt::format("{}\n{} {}, {}\nmesh      {}\n{}{}", tensor.name, tensor.kind, graph::to_string(tensor.type),
                  human_bytes(bytes), mesh_text(mesh), stages_having(tensor), roles_text(tensor, mesh));
  if (!placement.partial.empty()) {
    text += "each rank has a part of the sum at every index that it has\n";
  }
  for (const mesh::AxisId axis : placement.varying) {
    text += fmt::format("each rank along {} has a value of its own\n", mesh.axes[axis].name);
  }
  return fmt::format("{}\n{}\n{}", text, draw(shards, tensor.type.axes, width),
                     table(lines_of(shards, places, tensor.element_bytes())));
}

}  // namespace shardrun::cli
