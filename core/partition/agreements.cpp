#include "core/partition/agreements.h"

#include <algorithm>
#include <utility>

#include "core/partition/emitter.h"
#include "core/partition/transition.h"

namespace shardrun::partition {
namespace {

/// Whether ranks can hold copies of states of this kind. If any tensor varies, metrics such as the loss vary too.
bool has_copies(graph::StateKind kind, bool any_varies) noexcept {
  return kind != graph::StateKind::gradient && !(kind == graph::StateKind::metric && any_varies);
}

/// A program that reduces numbers to their maximum over all ranks along `axes`, one mesh axis after the other.
Program largest(std::string function, std::int64_t numbers, const std::vector<mesh::AxisId>& axes,
                const mesh::Mesh& mesh, const RankSettings& settings, const IdVector<graph::StateId, Buffer>& states) {
  Program program{.function = std::move(function), .call_rows = {0}, .counts = false};
  for (const Buffer& state : states) {
    program.buffers.push_back(state);
  }
  const auto last = static_cast<std::int32_t>(2 * axes.size()) - 1;
  const auto add = [&](const std::string& name, std::int64_t elements) {
    return program.buffers.push_back({.name = name,
                                      .type = {graph::DType::i32, {elements}, {""}},
                                      .rounded = graph::DType::i32,
                                      .box = {{0}, {elements}},
                                      .global = {elements},
                                      .category = Category::communication,
                                      .bytes = static_cast<std::uint64_t>(elements) * 4,
                                      .first = 0,
                                      .last = last});
  };
  const BufferId buffer = add(program.function, numbers);
  program.inputs = {{.name = agreed_numbers, .buffer = buffer}};
  for (const mesh::AxisId axis : axes) {
    Transfer transfer{.name = program.function,
                      .collective = Collective::all_reduce,
                      .axis = axis,
                      .reduction = Reduction::max,
                      .dtype = graph::DType::i32,
                      .send = {buffer, numbers},
                      .recv = {buffer, numbers},
                      .is_direct = settings.is_direct(axis)};
    const std::uint64_t scratch = settings.transfer_scratch ? settings.transfer_scratch(transfer, mesh.size(axis)) : 0;
    if (scratch > 0) {
      transfer.scratch = add(program.function + "/scratch", static_cast<std::int64_t>((scratch + 3) / 4));
      program.buffers[transfer.scratch].is_staged = !settings.device.is_addressable() && !transfer.is_direct;
    }
    const TransferId id = program.transfers.push_back(std::move(transfer));
    for (const auto kind : {Instruction::Kind::start, Instruction::Kind::wait}) {
      program.instructions.push_back({.kind = kind,
                                      .op = &op_of(Transition::Kind::all_reduce),
                                      .name = program.function,
                                      .phase = graph::Phase::update,
                                      .transfer = id});
    }
  }
  return program;
}

}  // namespace

bool ReplicaSet::runs_along(mesh::AxisId axis) const noexcept {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

std::vector<ReplicaSet> replicas_of(const graph::Graph& graph, const Partition& partition) {
  const mesh::Mesh& mesh = partition.placements.mesh;
  const IdVector<graph::StateId, mesh::Placement>& placements = partition.placements.states;
  const bool any_varies = std::any_of(placements.begin(), placements.end(),
                                      [](const mesh::Placement& placement) { return !placement.varying.empty(); });
  std::vector<ReplicaSet> sets;
  for (const graph::StateId s : graph.states.ids()) {
    if (!has_copies(graph.states[s].kind, any_varies)) {
      continue;
    }
    const mesh::Placement& placement = partition.sharded.finalizations[s].after;
    ReplicaSet set{.axes = {}, .stages = partition.stages.states.held[s], .states = {}};
    for (const mesh::AxisId axis : mesh.axes.ids()) {
      const bool is_replicated = axis == partition.pipeline.axis
                                     ? std::count(set.stages.begin(), set.stages.end(), true) > 1
                                     : mesh.size(axis) > 1 && !placement.splits(axis) && !placement.varies(axis) &&
                                           !placement.is_partial(axis);
      if (is_replicated) {
        set.axes.push_back(axis);
      }
    }
    if (set.axes.empty()) {
      continue;
    }
    const auto known = std::find_if(sets.begin(), sets.end(), [&](const ReplicaSet& each) {
      return each.axes == set.axes && each.stages == set.stages;
    });
    ReplicaSet& found = known == sets.end() ? sets.emplace_back(std::move(set)) : *known;
    found.states.push_back(s);
  }
  return sets;
}

std::string comparison_function(const mesh::Mesh& mesh, mesh::AxisId axis) {
  return "comparison of replicas along " + mesh.axes[axis].name;
}

std::vector<Program> agreements_of(const graph::Graph& graph, const Partition& partition, const RankSettings& settings,
                                   const IdVector<graph::StateId, Buffer>& states) {
  const mesh::Mesh& mesh = partition.placements.mesh;
  const std::vector<ReplicaSet> sets = settings.comparisons ? replicas_of(graph, partition) : std::vector<ReplicaSet>();
  std::vector<mesh::AxisId> axes;
  std::vector<Program> programs;
  for (const mesh::AxisId axis : mesh.axes.ids()) {
    if (mesh.size(axis) > 1) {
      axes.push_back(axis);
    }
  }
  if (axes.empty()) {
    return programs;
  }
  programs.push_back(largest(agreement_function, 1, axes, mesh, settings, states));
  for (const mesh::AxisId axis : axes) {
    if (std::any_of(sets.begin(), sets.end(), [&](const ReplicaSet& set) { return set.runs_along(axis); })) {
      programs.push_back(largest(comparison_function(mesh, axis),
                                 numbers_per_replica_set * static_cast<std::int64_t>(sets.size()), {axis}, mesh,
                                 settings, states));
    }
  }
  return programs;
}

}  // namespace shardrun::partition
