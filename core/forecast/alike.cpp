#include "core/forecast/alike.h"

#include <set>
#include <utility>

namespace shardrun::forecast {
namespace {

using Sized = std::pair<std::vector<std::int64_t>, mesh::Placement>;  ///< a shape, and where it is

/// What a stage's functions have parts of.
std::set<Sized> parts_of(const graph::Graph& graph, const partition::Partition& partition,
                         const partition::StageFunctions& stage) {
  std::set<Sized> parts;
  for (const partition::ShardedFunction& function : stage.functions) {
    for (std::size_t v = 0; v < function.function.values.size(); ++v) {
      if (function.alike_value(v) == v) {
        parts.emplace(function.function.values[v].type.shape, function.placements[v]);
      }
    }
  }
  for (std::size_t s = 0; s < graph.states.size(); ++s) {
    parts.emplace(graph.states[s].type.shape, partition.placements.states[s]);
    parts.emplace(graph.states[s].type.shape, partition.sharded.settlements[s].after);
  }
  return parts;
}

/// Mesh axes along which ranks of like parts differ in what they exchange: at the ends there is less.
std::set<mesh::AxisId> exchanged_axes(const partition::Partition& partition) {
  std::set<mesh::AxisId> axes;
  for (const partition::ShardedFunction& function : partition.sharded.functions) {
    for (const std::optional<partition::Transition>& step : function.transitions) {
      if (step && step->kind == partition::Transition::Kind::exchange) {
        axes.insert(step->axis);
      }
    }
  }
  return axes;
}

}  // namespace

std::vector<std::vector<std::int64_t>> alike_ranks(const graph::Graph& graph, const partition::Partition& partition,
                                                   const partition::StageFunctions& stage) {
  const mesh::Mesh& mesh = partition.placements.mesh;
  const std::set<Sized> parts = parts_of(graph, partition, stage);
  const std::set<mesh::AxisId> exchanged = exchanged_axes(partition);
  std::map<std::vector<std::int64_t>, std::size_t> known;
  std::vector<std::vector<std::int64_t>> alike;
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    const mesh::Coordinates at = mesh::coordinates_of(mesh, rank);
    if (partition.stage_at(at) != stage.stage) {
      continue;
    }
    std::vector<std::int64_t> sizes;
    for (const mesh::AxisId axis : exchanged) {
      sizes.push_back(at[static_cast<std::size_t>(axis)]);
    }
    for (const auto& [shape, placement] : parts) {
      for (std::size_t d = 0; d < shape.size(); ++d) {
        if (!placement.dims[d].empty()) {
          sizes.push_back(mesh::shard_of(shape[d], placement.dims[d], mesh, at).size());
        }
      }
      if (!placement.flat.empty()) {
        sizes.push_back(mesh::box_of(shape, placement, mesh, at).elements());
      }
    }
    const auto [entry, is_new] = known.emplace(std::move(sizes), alike.size());
    if (is_new) {
      alike.emplace_back();
    }
    alike[entry->second].push_back(rank);
  }
  return alike;
}

SentTable sent_table(const partition::Programs& programs, const std::vector<std::size_t>& executed,
                     std::size_t f32_bytes) {
  std::vector<std::map<partition::Collective, std::vector<std::uint64_t>>> sums(
      programs.mesh.axes.size());  // of each member
  for (const std::size_t program : executed) {
    for (const partition::Transfer& transfer : programs.programs[program].transfers) {
      const std::size_t element_bytes = transfer.dtype == graph::DType::f32 ? f32_bytes : 4;
      const std::int64_t members = programs.mesh.size(transfer.axis);
      std::vector<std::uint64_t>& sum = sums[static_cast<std::size_t>(transfer.axis)][transfer.collective];
      sum.resize(static_cast<std::size_t>(members));
      for (std::int64_t member = 0; member < members; ++member) {
        sum[static_cast<std::size_t>(member)] += partition::sent_bytes(transfer, member, members, element_bytes);
      }
    }
  }
  SentTable table;
  for (std::size_t a = 0; a < sums.size(); ++a) {
    const mesh::Axis& axis = programs.mesh.axes[a];
    std::vector<partition::SentBytes>& of_members = table.emplace_back(static_cast<std::size_t>(axis.size));
    for (const auto& [collective, sum] : sums[a]) {
      for (std::size_t member = 0; member < sum.size(); ++member) {
        if (sum[member] > 0) {
          of_members[member][axis.name][to_string(collective)] = sum[member];
        }
      }
    }
  }
  return table;
}

partition::SentBytes sent_of(const SentTable& table, const mesh::Coordinates& at) {
  partition::SentBytes sent;
  for (std::size_t axis = 0; axis < table.size(); ++axis) {
    sent.merge(partition::SentBytes(table[axis][static_cast<std::size_t>(at[axis])]));
  }
  return sent;
}

}  // namespace shardrun::forecast
