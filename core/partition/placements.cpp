#include "core/partition/placements.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

using plan::TensorRole;

std::vector<mesh::AxisId> axes_of(const mesh::Mesh& mesh, const std::vector<std::string>& names) {
  std::vector<mesh::AxisId> axes;
  for (const std::string& name : names) {
    const mesh::AxisId axis = mesh.find(name);
    if (mesh.size(axis) > 1) {
      axes.push_back(axis);
    }
  }
  return axes;
}

/// Whether some rank needs other indices of a grouped dimension than an equal split gives it. The rank needs those that
/// its part of the other axis (GroupedAxis::of) reads.
bool has_halo(const mesh::Placement& placement, const mesh::Halo& halo, std::int64_t size, const mesh::Mesh& mesh) {
  mesh::Placement grouped = placement;
  grouped.halos = {halo};
  mesh::Coordinates at(mesh.axes.size(), 0);
  const auto next = [&] {
    return std::ranges::any_of(placement.dims[halo.dim], [&](mesh::AxisId axis) {
      at[axis] = (at[axis] + 1) % mesh.size(axis);
      return at[axis] != 0;
    });
  };
  do {
    if (mesh::shard_of(size, placement.dims[halo.dim], mesh, at) !=
        mesh::interval_of(size, grouped, halo.dim, mesh, at)) {
      return true;
    }
  } while (next());
  return false;
}

/// For split dimensions that group another axis: gives each rank the indices that its part of the other axis needs.
/// Halos run along one mesh axis, so with halos a dimension is split over its first axis only. `shared`: whether all
/// ranks that need an index have it, or only the first of them.
void group(mesh::Placement& placement, const graph::TensorType& type, bool shared, const mesh::Mesh& mesh) {
  placement.halos.clear();
  for (std::size_t d = 0; d < placement.dims.size(); ++d) {
    const std::optional<graph::GroupedAxis> axis = graph::grouped_axis(type.axes[d]);
    if (!axis || placement.dims[d].empty()) {
      continue;
    }
    const mesh::Halo halo{d, axis->window(), type.shape[d] * axis->group};
    if (has_halo(placement, halo, type.shape[d], mesh)) {
      placement.dims[d].resize(1);
      if (has_halo(placement, halo, type.shape[d], mesh)) {
        placement.halos.push_back(shared ? halo : halo.own());
      }
    }
  }
}

mesh::Placement placement_of(const mesh::Mesh& mesh, const plan::DimSplits& dims) {
  mesh::Placement placement;
  for (const std::vector<std::string>& names : dims) {
    placement.dims.push_back(axes_of(mesh, names));
  }
  return placement;
}

/// Throws Error{job} if `mesh_axis` is the pipeline's axis. Ranks along it hold different tensors, so no tensor can
/// vary or be synchronized along it.
void require_no_pipeline(const plan::Plan& plan, const std::string& mesh_axis, const std::string& what) {
  if (plan.pipeline.mesh_axis == mesh_axis) {
    throw Error(ErrorCode::job,
                fmt::format("strategy {} plans {} along mesh axis '{}', which is that of the pipeline's "
                            "stages: these have different layers",
                            plan.strategy, what, mesh_axis));
  }
}

using RoleKey = std::pair<std::string, TensorRole>;

/// The placement of each parameter in each role. If the plan gives none, a role follows another one: use and gradient
/// follow store, and optimizer follows gradient.
class Roles {
 public:
  Roles(const plan::Plan& plan, const Placements& placements) : placements_(placements) {
    for (const plan::VaryingTensor& tensor : plan.varying) {
      const mesh::AxisId axis = placements.mesh.find(tensor.mesh_axis);
      if (placements.mesh.size(axis) > 1) {
        require_no_pipeline(plan, tensor.mesh_axis, fmt::format("what {} is on each rank", tensor.tensor));
        varying_[tensor.tensor].insert(axis);
      }
    }
    for (const plan::TensorPlacement& tensor : plan.tensors) {
      mesh::Placement placement = placement_of(placements.mesh, tensor.dims);
      placement.flat = axes_of(placements.mesh, tensor.flat);
      given_.emplace(RoleKey{tensor.tensor, tensor.role}, std::move(placement));
    }
  }

  [[nodiscard]] mesh::Placement of(const graph::State& tensor, TensorRole role) const {
    mesh::Placement placement = split_of(tensor, role);
    // In the roles gradient and optimizer each element is on a single rank, so that sums over elements count it once.
    const bool is_read = role == TensorRole::store || role == TensorRole::use;
    group(placement, tensor.type, is_read && placement.flat.empty(), placements_.mesh);
    const auto axes = varying_.find(tensor.name);
    if (axes != varying_.end()) {
      placement.varying.assign(axes->second.begin(), axes->second.end());
      require_varies_alone(tensor, placement);
    }
    return placement;
  }

 private:
  [[nodiscard]] mesh::Placement split_of(const graph::State& tensor, TensorRole role) const {
    const auto found = given_.find({tensor.name, role});
    if (found != given_.end()) {
      return found->second;
    }
    switch (role) {
      case TensorRole::store: return placements_.by_axes(tensor.type);
      case TensorRole::use:
      case TensorRole::gradient: return split_of(tensor, TensorRole::store);
      case TensorRole::optimizer: return split_of(tensor, TensorRole::gradient);
    }
    return placements_.by_axes(tensor.type);
  }

  void require_varies_alone(const graph::State& tensor, const mesh::Placement& placement) const {
    for (const mesh::AxisId axis : placement.varying) {
      if (placement.splits(axis)) {
        throw Error(ErrorCode::job,
                    fmt::format("{} varies over mesh axis '{}', which splits it too: {}", tensor.name,
                                placements_.mesh.axes[axis].name, to_string(placement, placements_.mesh)));
      }
    }
  }

  const Placements& placements_;
  std::map<RoleKey, mesh::Placement> given_;
  std::map<std::string, std::set<mesh::AxisId>> varying_;
};

/// When each tensor is gathered, by its name. Units are numbered in the order in which they occur.
std::map<std::string, Gather> gathers_of(const plan::Plan& plan) {
  std::map<std::string, std::int32_t> units;
  std::map<std::string, Gather> gathers;
  for (const plan::TensorGather& tensor : plan.gathers) {
    const auto unit = units.emplace(tensor.unit, static_cast<std::int32_t>(units.size())).first;
    gathers[tensor.tensor] = {.unit = unit->second, .keep = tensor.keep};
  }
  return gathers;
}

TensorRole role_of(const graph::State& state) noexcept {
  switch (state.kind) {
    case graph::StateKind::gradient: return TensorRole::gradient;
    case graph::StateKind::optimizer: return TensorRole::optimizer;
    case graph::StateKind::hook_state: return state.of_gradient ? TensorRole::gradient : TensorRole::store;
    default: return TensorRole::store;
  }
}

/// Throws TrainKeyError if the hook would get gradients that are not float32.
void require_float32(const graph::Graph& graph, const plan::Plan& plan, const PlacedHook& hook) {
  for (const graph::State& state : graph.states) {
    if (hook.kind == plan::HookKind::sync_gradients && state.kind == graph::StateKind::gradient &&
        state.type.dtype != graph::DType::f32 && hook.numbers.contains(state.of_parameter)) {
      throw TrainKeyError("gradients",
                          fmt::format("strategy {}: the hook sync_gradients is given float32 gradients, and {} is {}: "
                                      "set [train] gradients = float32",
                                      plan.strategy, state.name, to_string(state.type.dtype)));
    }
  }
}

PlacedHook place_hook(const graph::Graph& graph, const plan::Hook& hook, mesh::AxisId axis,
                      const std::map<std::string, graph::StateId>& states) {
  PlacedHook placed{
      .kind = hook.kind, .axis = axis, .every = hook.every, .parameters = {}, .numbers = {}, .states = {}};
  for (const std::string& tensor : hook.tensors) {
    const graph::StateId parameter = states.at(tensor);
    placed.numbers.emplace(parameter, placed.parameters.size());
    placed.parameters.push_back(hook.kind == plan::HookKind::after_step ? graph.master_of(parameter) : parameter);
  }
  for (const plan::HookState& state : hook.states) {
    std::vector<graph::StateId>& of_tensors = placed.states.emplace_back();
    for (const std::string& tensor : hook.tensors) {
      of_tensors.push_back(states.at(fmt::format("{}/{}", state.name, tensor)));
    }
  }
  return placed;
}

std::vector<PlacedHook> place_hooks(const graph::Graph& graph, const plan::Plan& plan, const mesh::Mesh& mesh) {
  std::map<std::string, graph::StateId> states;
  for (const graph::StateId id : graph.states.ids()) {
    states.emplace(graph.states[id].name, id);
  }
  std::vector<PlacedHook> hooks;
  for (const plan::Hook& hook : plan.hooks) {
    require_no_pipeline(plan, hook.mesh_axis, fmt::format("the hook {}", to_string(hook.kind)));
    hooks.push_back(place_hook(graph, hook, mesh.find(hook.mesh_axis), states));
    require_float32(graph, plan, hooks.back());
  }
  return hooks;
}

/// The hook that keeps a state, or null.
const plan::Hook* keeper_of(const graph::State& state, const plan::Plan& plan) {
  if (state.kind != graph::StateKind::hook_state) {
    return nullptr;
  }
  return plan.find_hook(state.of_gradient ? plan::HookKind::sync_gradients : plan::HookKind::after_step);
}

void vary(mesh::Placement& placement, mesh::AxisId axis, const mesh::Mesh& mesh) {
  if (mesh.size(axis) > 1 && !placement.varies(axis)) {
    placement.varying.push_back(axis);
    std::sort(placement.varying.begin(), placement.varying.end());
  }
}

}  // namespace

const PlacedHook* Placements::find_hook(plan::HookKind kind) const noexcept {
  const auto found =
      std::find_if(hooks.begin(), hooks.end(), [&](const PlacedHook& hook) { return hook.kind == kind; });
  return found == hooks.end() ? nullptr : &*found;
}

mesh::Placement Placements::by_axes(const graph::TensorType& type) const {
  mesh::Placement placement = mesh::replicated(type.shape.size());
  for (std::size_t d = 0; d < type.shape.size(); ++d) {
    const std::optional<graph::GroupedAxis> grouped = graph::grouped_axis(type.axes[d]);
    const auto rule = axes.find(grouped ? grouped->of : type.axes[d]);
    if (rule == axes.end()) {
      continue;
    }
    for (const mesh::AxisId axis : rule->second) {
      if (!placement.splits(axis)) {
        placement.dims[d].push_back(axis);
      }
    }
  }
  group(placement, type, true, mesh);
  return placement;
}

namespace {

/// For each state, the dimensions along which some node adds up rounded numbers.
IdVector<graph::StateId, std::set<std::size_t>> summed_dims(const graph::Graph& graph) {
  IdVector<graph::StateId, std::set<std::size_t>> summed(graph.states.size());
  for (const graph::Function& function : graph.functions) {
    for (const graph::Node& node : function.nodes) {
      for (std::size_t i = 0; i < node.inputs.size(); ++i) {
        const graph::StateId state = function.values[node.inputs[i]].state;
        const std::vector<graph::FactorId>& dims = node.rule.inputs[std::min(i, node.rule.inputs.size() - 1)];
        for (std::size_t d = 0; state.exists() && d < dims.size(); ++d) {
          if (graph::rounds_sum(node.rule.factors[dims[d]])) {
            summed[state].insert(d);
          }
        }
      }
    }
  }
  return summed;
}

/// Splits a tensor's longest other dimension over the axes that split its summed dimensions. If all dimensions are
/// summed, ops gather it.
void split_others(mesh::Placement& placement, const graph::TensorType& type, const std::set<std::size_t>& summed) {
  std::optional<std::size_t> longest;
  for (std::size_t d = 0; d < type.shape.size(); ++d) {
    if (!summed.contains(d) && (!longest || type.shape[d] > type.shape[*longest])) {
      longest = d;
    }
  }
  for (const std::size_t d : longest ? summed : std::set<std::size_t>{}) {
    std::vector<mesh::AxisId>& to = placement.dims[*longest];
    to.insert(to.begin(), placement.dims[d].begin(), placement.dims[d].end());
    placement.dims[d].clear();
    std::erase_if(placement.halos, [&](const mesh::Halo& halo) { return halo.dim == d; });
  }
}

/// Implements Plan::whole_sums for the states.
void keep_sums_whole(const graph::Graph& graph, Placements& placements) {
  const IdVector<graph::StateId, std::set<std::size_t>> summed = summed_dims(graph);
  for (const graph::StateId id : graph.states.ids()) {
    for (IdVector<graph::StateId, mesh::Placement>* const of_states :
         {&placements.states, &placements.uses, &placements.updates}) {
      split_others((*of_states)[id], graph.states[id].type, summed[id]);
    }
  }
}

/// Throws Error{job} if the hook after_step would get tensors that are split over its axis, or incomplete masters.
void require_whole_for_hook(const graph::Graph& graph, const Placements& placements) {
  const PlacedHook* hook = placements.find_hook(plan::HookKind::after_step);
  for (const auto& [parameter, number] : hook == nullptr ? decltype(hook->numbers){} : hook->numbers) {
    const mesh::Placement& stored = placements.states[parameter];
    if (stored.splits(hook->axis)) {
      throw Error(ErrorCode::job,
                  fmt::format("the hook after_step over mesh axis '{}' is given whole tensors, and {} is stored as {}: "
                              "give the hook other tensors, or place this one whole",
                              placements.mesh.axes[hook->axis].name, graph.states[parameter].name,
                              to_string(stored, placements.mesh)));
    }
    if (graph.master_of(parameter) != parameter && !stored.halos.empty()) {
      throw TrainKeyError("precision",
                          fmt::format("{} is split so that ranks have indices in common, and the hook after_step would "
                                      "be given the float32 copies of some of them only: set [train] precision = "
                                      "float32, or split heads over a number of ranks that divides them evenly",
                                      graph.states[parameter].name));
    }
  }
}

}  // namespace

Placements place(const graph::Graph& graph, const plan::Plan& plan) {
  Placements placements;
  placements.whole_sums = plan.whole_sums;
  for (const plan::MeshAxis& axis : plan.mesh) {
    placements.mesh.axes.push_back({axis.name, axis.size});
  }
  placements.mesh.set_order(plan.order);
  const std::string& pipe = plan.pipeline.mesh_axis;
  placements.stages = !pipe.empty() && placements.mesh.size(placements.mesh.find(pipe)) > 1;
  for (const plan::AxisPlacement& axis : plan.axes) {
    placements.axes[axis.axis] = axes_of(placements.mesh, axis.mesh_axes);
  }
  for (const plan::CutPointPlacement& point : plan.cut_points) {
    placements.cut_points[point.cut_point] = placement_of(placements.mesh, point.dims);
  }
  const Roles roles(plan, placements);
  const std::map<std::string, Gather> gathers = gathers_of(plan);
  placements.hooks = place_hooks(graph, plan, placements.mesh);
  for (const graph::State& state : graph.states) {
    const bool derived = state.of_parameter.exists();
    const graph::State& owner = derived ? graph.states[state.of_parameter] : state;
    mesh::Placement stored = roles.of(owner, role_of(state));
    if (const plan::Hook* hook = keeper_of(state, plan)) {
      vary(stored, placements.mesh.find(hook->mesh_axis), placements.mesh);
    }
    placements.states.push_back(stored);
    placements.uses.push_back(derived ? stored : roles.of(owner, TensorRole::use));
    placements.updates.push_back(state.kind == graph::StateKind::gradient ? roles.of(owner, TensorRole::optimizer)
                                                                          : stored);
    const auto gather = gathers.find(state.name);
    const bool elsewhere = placements.uses.back() != stored;
    placements.gathers.push_back(elsewhere && gather != gathers.end() ? gather->second : Gather{});
    if (elsewhere && placements.stages && placements.gathers.back().unit < 0) {
      // If it were gathered once per call, a single stage would gather it and send it to the others.
      placements.gathers.back().unit = static_cast<std::int32_t>(graph.states.size() + placements.gathers.size());
    }
  }
  if (plan.whole_sums) {
    keep_sums_whole(graph, placements);
  }
  require_whole_for_hook(graph, placements);
  return placements;
}

}  // namespace shardrun::partition
