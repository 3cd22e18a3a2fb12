#include "core/partition/hooks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

graph::StateId parameter_of(graph::StateId id, const graph::Graph& graph) {
  const graph::StateId of = graph.states[id].of_parameter;
  return of.exists() ? of : id;
}

/// The group, with the shapes of this rank's parts. It has no tensors if this rank has no element of any of them.
plan::HookGroup group_of(const std::vector<graph::StateId>& states, const PlacedHook& hook, const Programs& programs,
                         const graph::Graph& graph) {
  plan::HookGroup group{.kind = hook.kind,
                        .members = static_cast<std::uint32_t>(programs.mesh.size(hook.axis)),
                        .states = static_cast<std::uint32_t>(hook.states.size()),
                        .tensors = {}};
  const bool is_empty = std::ranges::all_of(
      states, [&](graph::StateId id) { return graph::element_count(programs.states[id].type) == 0; });
  for (std::size_t t = 0; t < states.size() && !is_empty; ++t) {
    group.tensors.push_back({graph.states[parameter_of(states[t], graph)].name, programs.states[states[t]].type.shape});
  }
  return group;
}

}  // namespace

void add_hook_states(graph::Graph& graph, const plan::Plan& plan) {
  std::map<std::string, graph::StateId> known;
  for (const graph::StateId id : graph.states.ids()) {
    known.emplace(graph.states[id].name, id);
  }
  for (const plan::Hook& hook : plan.hooks) {
    for (const plan::HookState& state : hook.states) {
      for (const std::string& tensor : hook.tensors) {
        const graph::StateId parameter = known.at(tensor);
        const graph::State of = graph.states[graph.master_of(parameter)];  // a copy, because graph.states grows below
        const std::string name = fmt::format("{}/{}", state.name, tensor);
        if (!known.emplace(name, graph.states.next()).second) {
          throw Error(ErrorCode::job, fmt::format("strategy {} keeps a hook state '{}', and the model has "
                                                  "a {} of that name: the strategy has to call it otherwise",
                                                  plan.strategy, state.name, name));
        }
        graph::Initializer begins;
        if (state.copies_tensor) {
          begins = of.initializer;
          begins.stream = tensor;
        }
        graph.states.push_back({.name = name,
                                .type = of.type,
                                .kind = graph::StateKind::hook_state,
                                .initializer = std::move(begins),
                                .layer = of.layer,
                                .of_parameter = parameter,
                                .of_gradient = hook.kind == plan::HookKind::sync_gradients});
      }
    }
  }
}

const PlacedHook* hook_of(graph::StateKind kind, const Placements& placements) noexcept {
  return placements.find_hook(kind == graph::StateKind::gradient ? plan::HookKind::sync_gradients
                                                                 : plan::HookKind::after_step);
}

void require_masters(const graph::Graph& graph, const Partition& partition) {
  const PlacedHook* hook = partition.placements.find_hook(plan::HookKind::after_step);
  for (std::size_t p = 0; hook != nullptr && p < hook->parameters.size(); ++p) {
    const graph::StateId master = hook->parameters[p];
    const graph::StateId parameter = parameter_of(master, graph);
    const auto refuse = [&](const std::string& problem, const char* remedy) {
      throw TrainKeyError("precision", fmt::format("the hook after_step is given float32 tensors, which with [train] "
                                                   "precision = mixed are the master weights, and {} {}: {}, or set "
                                                   "[train] precision = float32",
                                                   graph.states[parameter].name, problem, remedy));
    };
    const mesh::Placement& kept = partition.placements.states[master];
    const mesh::Placement& stored = partition.placements.states[parameter];
    if (kept != stored) {
      const mesh::Mesh& mesh = partition.placements.mesh;
      refuse(fmt::format("is stored as {}, its optimizer states as {}", to_string(stored, mesh), to_string(kept, mesh)),
             "place both alike");
    }
    if (partition.stages.states.held[master] != partition.stages.states.held[parameter]) {
      refuse("is on several stages of the pipeline, its optimizer states on one", "give the hook other tensors");
    }
  }
}

std::vector<std::vector<graph::StateId>> hook_states_of(const std::vector<graph::StateId>& group,
                                                        const PlacedHook& hook, const graph::Graph& graph) {
  std::vector<std::vector<graph::StateId>> found;
  for (const std::vector<graph::StateId>& of_parameters : hook.states) {
    std::vector<graph::StateId>& of_group = found.emplace_back();
    for (const graph::StateId id : group) {
      of_group.push_back(of_parameters[hook.numbers.at(parameter_of(id, graph))]);
    }
  }
  return found;
}

void plan_hooks(std::vector<Bucket>& buckets, Programs& programs, const graph::Graph& graph,
                const Placements& placements, const RankSettings& settings) {
  for (Bucket& bucket : buckets) {
    const bool hooked =
        std::ranges::any_of(bucket.steps, [](const Transition& step) { return step.kind == Transition::Kind::hook; });
    if (!hooked) {
      continue;
    }
    const PlacedHook& hook = *hook_of(graph.states[bucket.states.front()].kind, placements);
    plan::HookGroup group = group_of(bucket.states, hook, programs, graph);
    if (!group.tensors.empty()) {
      bucket.hook = {.group = static_cast<std::uint32_t>(programs.hook_groups.size()),
                     .plan = settings.plan_hook(group)};
      programs.hook_groups.push_back(std::move(group));
    }
  }
}

}  // namespace shardrun::partition
