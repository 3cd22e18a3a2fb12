#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "core/base/error.h"
#include "core/compile/compile.h"
#include "core/partition/alike.h"

namespace shardrun::compile {
namespace {

/// More axes have too many orders to try.
constexpr std::size_t most_axes = 7;

/// Adds the bytes that a rank sends for a transfer. The transfer is from the rank's program, or from an equal one.
void add(Traffic& traffic, const mesh::Mesh& mesh, std::int64_t rank, const partition::Transfer& transfer) {
  const std::vector<std::int64_t> line = mesh::line_through(mesh, transfer.axis, rank);
  const auto members = static_cast<std::int64_t>(line.size());
  const std::int64_t member = mesh::coordinates_of(mesh, rank)[transfer.axis];
  const auto send = [&](std::int64_t to, std::uint64_t bytes) {
    if (bytes > 0 && to != member) {
      traffic[{rank, line[static_cast<std::size_t>(to)]}] += bytes;
    }
  };
  switch (transfer.collective) {
    case partition::Collective::receive: return;
    case partition::Collective::send:
      return send(transfer.link.to.number(), partition::sent_bytes(transfer, member, members));
    case partition::Collective::all_to_all:
    case partition::Collective::halo:
      for (std::int64_t to = 0; to < members; ++to) {
        send(to, static_cast<std::uint64_t>(transfer.send_counts[static_cast<std::size_t>(to)]) *
                     graph::element_bytes(transfer.dtype));
      }
      return;
    default: return send((member + 1) % members, partition::sent_bytes(transfer, member, members));
  }
}

/// The rank at each place of the mesh, if the coordinate along the last of `axes` changes fastest with the rank. Axes
/// that are not listed have size 1.
std::vector<std::int64_t> order_of(const mesh::Mesh& mesh, const std::vector<mesh::AxisId>& axes) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(mesh.ranks()));
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    mesh::Coordinates at(mesh.axes.size(), 0);
    std::int64_t rest = rank;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      at[*axis] = rest % mesh.size(*axis);
      rest /= mesh.size(*axis);
    }
    order[static_cast<std::size_t>(mesh::rank_at(mesh, at))] = rank;
  }
  return order;
}

/// The possible numbers of ranks per machine.
std::vector<std::int64_t> machine_sizes(const job::Job& job) {
  if (job.cluster.ranks_per_machine > 0) {
    return {job.cluster.ranks_per_machine};
  }
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 2; size < job.ranks; ++size) {
    if (job.ranks % size == 0) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

}  // namespace

Traffic traffic_of(const job::Job& job, const Compiled& compiled) {
  const partition::Partition& partition = compiled.partition;
  Traffic traffic;
  for (const partition::StageId stage : partition.pipeline.stage_ids()) {
    const std::shared_ptr<const partition::StageFunctions> functions = functions_of_stage(compiled, stage);
    for (const std::vector<std::int64_t>& alike : partition::alike_ranks(compiled.graph, partition, *functions)) {
      const partition::Programs programs = programs_of_rank(job, compiled, alike.front(), *compiled.device, *functions);
      for (const std::size_t program : programs_of_step(compiled, programs)) {
        for (const partition::Transfer& transfer : programs.programs[program].transfers) {
          for (const std::int64_t rank : alike) {
            add(traffic, partition.placements.mesh, rank, transfer);
          }
        }
      }
    }
  }
  return traffic;
}

std::uint64_t bytes_between_machines(const Traffic& traffic, std::int64_t ranks_per_machine,
                                     const std::vector<std::int64_t>& order) {
  const auto machine_of = [&](std::int64_t rank) {
    return (order.empty() ? rank : order[static_cast<std::size_t>(rank)]) / ranks_per_machine;
  };
  std::uint64_t bytes = 0;
  for (const auto& [ranks, sent] : traffic) {
    bytes += machine_of(ranks.first) == machine_of(ranks.second) ? 0 : sent;
  }
  return bytes;
}

std::vector<std::int64_t> order_by_traffic(const job::Job& job, const Compiled& compiled) {
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  const auto ids = mesh.axes.ids();
  std::vector<mesh::AxisId> axes;
  std::ranges::copy_if(ids, std::back_inserter(axes), [&](mesh::AxisId axis) { return mesh.size(axis) > 1; });
  if (axes.size() > most_axes) {
    throw Error(ErrorCode::job, fmt::format("{}: order = topology tries the orders of at most {} axes, and this mesh "
                                            "has more: write the ranks in the order that they are to have",
                                            job.where("mesh", "order"), most_axes));
  }
  const Traffic traffic = traffic_of(job, compiled);
  const std::vector<std::int64_t> sizes = machine_sizes(job);
  std::vector<std::int64_t> best;
  std::optional<std::uint64_t> least;
  do {
    std::vector<std::int64_t> order = order_of(mesh, axes);
    std::uint64_t bytes = 0;
    for (const std::int64_t size : sizes) {
      bytes += bytes_between_machines(traffic, size, order);
    }
    if (!least || bytes < *least) {
      least = bytes;
      best = std::move(order);
    }
  } while (std::ranges::next_permutation(axes).found);
  return std::ranges::is_sorted(best) ? std::vector<std::int64_t>() : best;
}

}  // namespace shardrun::compile
