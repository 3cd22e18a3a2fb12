#include "core/partition/alike.h"

#include <set>
#include <utility>

namespace shardrun::partition {
namespace {

using Sized = std::pair<std::vector<std::int64_t>, mesh::Placement>;  ///< a shape and its placement

/// The shapes and placements of all values of a stage's functions, and of all states.
std::set<Sized> parts_of(const graph::Graph& graph, const Partition& partition, const StageFunctions& stage) {
  std::set<Sized> parts;
  for (const SplitFunction& function : stage.functions) {
    for (const graph::ValueId id : function.values.ids()) {
      const SplitValue& value = function.values[id];
      if (value.alike == id) {
        parts.emplace(value.type.shape, value.placement);
      }
    }
  }
  for (const graph::StateId s : graph.states.ids()) {
    parts.emplace(graph.states[s].type.shape, partition.placements.states[s]);
    parts.emplace(graph.states[s].type.shape, partition.sharded.finalizations[s].after);
  }
  return parts;
}

/// Mesh axes along which ranks with equal parts send different amounts: the outer ranks have fewer neighbours.
std::set<mesh::AxisId> exchanged_axes(const Partition& partition) {
  std::set<mesh::AxisId> axes;
  for (const SplitFunction& function : partition.sharded.functions) {
    for (const SplitNode& node : function.nodes) {
      if (node.transition && (node.transition->kind == Transition::Kind::exchange ||
                              node.transition->kind == Transition::Kind::add_shared)) {
        axes.insert(node.transition->axis);
      }
    }
  }
  return axes;
}

}  // namespace

std::vector<std::vector<std::int64_t>> alike_ranks(const graph::Graph& graph, const Partition& partition,
                                                   const StageFunctions& stage) {
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
      sizes.push_back(at[axis]);
    }
    for (const auto& [shape, placement] : parts) {
      for (std::size_t d = 0; d < shape.size(); ++d) {
        if (!placement.dims[d].empty()) {
          sizes.push_back(mesh::interval_of(shape[d], placement, d, mesh, at).size());
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

SentTable sent_table(const Programs& programs, const std::vector<std::size_t>& executed) {
  IdVector<mesh::AxisId, std::map<Collective, std::vector<std::uint64_t>>> sums(
      programs.mesh.axes.size());  // bytes per member
  for (const std::size_t program : executed) {
    for (const Transfer& transfer : programs.programs[program].transfers) {
      const std::int64_t members = programs.mesh.size(transfer.axis);
      std::vector<std::uint64_t>& sum = sums[transfer.axis][transfer.collective];
      sum.resize(static_cast<std::size_t>(members));
      for (std::int64_t member = 0; member < members; ++member) {
        sum[static_cast<std::size_t>(member)] += sent_bytes(transfer, member, members);
      }
    }
  }
  SentTable table(sums.size());
  for (const mesh::AxisId axis : sums.ids()) {
    const auto& [name, size] = programs.mesh.axes[axis];
    table[axis].resize(static_cast<std::size_t>(size));
    for (const auto& [collective, sum] : sums[axis]) {
      for (std::size_t member = 0; member < sum.size(); ++member) {
        if (sum[member] > 0) {
          table[axis][member][name][to_string(collective)] = sum[member];
        }
      }
    }
  }
  return table;
}

SentBytes sent_of(const SentTable& table, const mesh::Coordinates& at) {
  SentBytes sent;
  for (const mesh::AxisId axis : table.ids()) {
    sent.merge(SentBytes(table[axis][static_cast<std::size_t>(at[axis])]));
  }
  return sent;
}

}  // namespace shardrun::partition
