#include "core/cli/sharding.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <utility>

namespace shardrun::cli {
namespace {

namespace json = boost::json;

json::object json_of(const mesh::Placement& placement, const mesh::Mesh& mesh) {
  const auto name = [&](mesh::AxisId axis) { return json::string(mesh.axes[axis].name); };
  const auto names = [&](const std::vector<mesh::AxisId>& axes) {
    json::array array;
    for (const mesh::AxisId axis : axes) {
      array.push_back(name(axis));
    }
    return array;
  };
  json::array dims;
  for (const std::vector<mesh::AxisId>& axes : placement.dims) {
    dims.push_back(names(axes));
  }
  json::array partial;
  for (const mesh::Partial& each : placement.partial) {
    partial.push_back(json::object{{"axis", name(each.axis)}, {"reduction", to_string(each.reduction)}});
  }
  return {{"text", to_string(placement, mesh)},
          {"dims", std::move(dims)},
          {"flat", names(placement.flat)},
          {"partial", std::move(partial)},
          {"varying", names(placement.varying)}};
}

json::array json_of(const std::vector<mesh::Shard>& shards, const std::vector<RankPlace>& places,
                    std::size_t element_bytes) {
  const auto known = [](const std::string& text) { return text.empty() ? json::value() : json::value(text); };
  json::array of_ranks(places.size());
  for (const mesh::Shard& shard : shards) {
    json::array ranges;
    for (std::size_t d = 0; d < shard.box.shape.size(); ++d) {
      const mesh::Interval interval = interval_along(shard.box, d);
      ranges.push_back(json::array{interval.begin, interval.end});
    }
    const std::vector<std::int64_t> shape = shard.box.part_shape();
    for (const std::int64_t rank : shard.ranks) {
      json::object part{{"rank", rank},
                        {"ranges", ranges},
                        {"shape", json::array(shape.begin(), shape.end())},
                        {"elements", shard.box.elements()},
                        {"host", known(places[static_cast<std::size_t>(rank)].host)},
                        {"device", known(places[static_cast<std::size_t>(rank)].device)},
                        {"bytes", static_cast<std::uint64_t>(shard.box.elements()) * element_bytes}};
      if (shard.box.run) {
        part["run"] = json::array{shard.box.run->begin, shard.box.run->end};
      }
      of_ranks[static_cast<std::size_t>(rank)] = std::move(part);
    }
  }
  of_ranks.erase(std::remove(of_ranks.begin(), of_ranks.end(), json::value()), of_ranks.end());
  return of_ranks;
}

json::object json_of(const PlacedTensor& tensor, const compile::Compiled& compiled,
                     const std::vector<RankPlace>& places) {
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  json::object placements;
  for (const PlacedRole& role : tensor.roles) {
    placements[role.name] = json_of(role.placement, mesh);
  }
  return {{"name", tensor.name},
          {"kind", tensor.kind},
          {"dtype", to_string(tensor.type.dtype)},
          {"element_bytes", tensor.element_bytes()},
          {"shape", json::array(tensor.type.shape.begin(), tensor.type.shape.end())},
          {"axes", json::array(tensor.type.axes.begin(), tensor.type.axes.end())},
          {"placements", std::move(placements)},
          {"ranks", json_of(shards_of(tensor, compiled), places, tensor.element_bytes())}};
}

}  // namespace

std::string sharding_json(const std::vector<PlacedTensor>& tensors, const compile::Compiled& compiled,
                          const std::vector<RankPlace>& places) {
  json::array axes;
  for (const mesh::Axis& axis : compiled.partition.placements.mesh.axes) {
    axes.push_back(json::object{{"name", axis.name}, {"size", axis.size}});
  }
  json::array all;
  for (const PlacedTensor& tensor : tensors) {
    all.push_back(json_of(tensor, compiled, places));
  }
  return json::serialize(json::object{{"mesh", std::move(axes)}, {"tensors", std::move(all)}}) + "\n";
}

}  // namespace shardrun::cli
