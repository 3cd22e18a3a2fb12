#include "core/partition/transition.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

using mesh::AxisId;
using mesh::Partial;
using mesh::Placement;
using Axes = std::vector<AxisId>;

bool is_prefix(const Axes& prefix, const Axes& axes) {
  return prefix.size() <= axes.size() && std::equal(prefix.begin(), prefix.end(), axes.begin());
}

/// Whether splitting `from` once more, over `axis`, brings it nearer to `to`.
bool extends(const Axes& from, const Axes& to, AxisId axis) {
  return from.size() < to.size() && is_prefix(from, to) && to[from.size()] == axis;
}

/// The dimensions that may be split further: those of the tensor until they equal `to`, then the flattened elements.
std::vector<std::size_t> splittable_dims(const Placement& from, const Placement& to) {
  if (from.dims == to.dims && from.halos == to.halos) {
    return {mesh::flattened};
  }
  std::vector<std::size_t> dims(from.flat.empty() ? from.dims.size() : 0);
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  return dims;
}

/// The halo along a dimension that becomes split.
std::optional<mesh::Halo> halo_along(const Placement& placement, std::size_t dim) {
  const mesh::Halo* found = placement.halo(dim);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

/// The halo along a dimension after a collective that leaves each index to a single rank.
std::optional<mesh::Halo> own_halo_along(const Placement& placement, std::size_t dim) {
  const mesh::Halo* found = placement.halo(dim);
  return found == nullptr ? std::nullopt : std::optional(found->own());
}

/// The transition that removes a halo which `to` does not have. A partial value is summed over the ranks that share an
/// index; otherwise each shared index is left to one rank.
std::optional<Transition> leave_halo(const Placement& from, const Placement& to) {
  for (const mesh::Halo& halo : from.halos) {
    const AxisId axis = from.dims[halo.dim].back();
    const bool stays = to.dims[halo.dim] == from.dims[halo.dim] && std::ranges::count(to.halos, halo) > 0;
    if (from.is_partial(axis) && !(stays && to.is_partial(axis))) {
      return Transition{.kind = Transition::Kind::add_shared, .axis = axis, .dim = halo.dim, .halo = halo.own()};
    }
    if (!stays && halo.overlaps() && from.flat.empty()) {
      return Transition{.kind = Transition::Kind::slice, .axis = axis, .dim = halo.dim, .halo = halo.own()};
    }
  }
  return std::nullopt;
}

/// Whether a dimension has to be gathered, either to become whole or to be split in another way.
bool is_left(const Placement& from, const Placement& to, std::size_t dim) {
  const bool keeps_intervals = from.halo(dim) == nullptr || (to.halo(dim) != nullptr && from.dims[dim] == to.dims[dim]);
  return !is_prefix(from.dims[dim], to.dims[dim]) || !keeps_intervals;
}

}  // namespace

const char* to_string(Transition::Kind kind) noexcept {
  switch (kind) {
    case Transition::Kind::slice: return "slice";
    case Transition::Kind::all_reduce: return "all_reduce";
    case Transition::Kind::reduce_scatter: return "reduce_scatter";
    case Transition::Kind::all_gather: return "all_gather";
    case Transition::Kind::all_to_all: return "all_to_all";
    case Transition::Kind::send: return "send";
    case Transition::Kind::receive: return "receive";
    case Transition::Kind::exchange: return "exchange";
    case Transition::Kind::add_shared: return "add_shared";
    case Transition::Kind::hook: return "hook";
  }
  return "?";
}

const graph::Op& op_of(Transition::Kind kind) {
  static const graph::Op ops[] = {
      {.name = to_string(Transition::Kind::slice)},
      {.name = to_string(Transition::Kind::all_reduce), .in_place = {{0, 0}}},
      {.name = to_string(Transition::Kind::reduce_scatter)},
      {.name = to_string(Transition::Kind::all_gather)},
      {.name = to_string(Transition::Kind::all_to_all)},
      {.name = to_string(Transition::Kind::send)},
      {.name = to_string(Transition::Kind::receive)},
      {.name = to_string(Transition::Kind::exchange)},
      {.name = to_string(Transition::Kind::add_shared)},
      {.name = to_string(Transition::Kind::hook)},
  };
  return ops[static_cast<std::size_t>(kind)];
}

std::optional<Transition> next_transition(const Placement& from, const Placement& to) {
  if (const std::optional<Transition> step = leave_halo(from, to)) {
    return step;
  }
  const std::vector<std::size_t> splittable = splittable_dims(from, to);
  for (const std::size_t d : splittable) {
    const Axes& now = from.along(d);
    const Axes& wanted = to.along(d);
    if (now != wanted && is_prefix(now, wanted) && (d == mesh::flattened || from.halo(d) == nullptr)) {
      const AxisId axis = wanted[now.size()];
      if (!from.splits(axis) && !from.is_partial(axis)) {
        return Transition{.kind = Transition::Kind::slice, .axis = axis, .dim = d, .halo = halo_along(to, d)};
      }
    }
  }
  for (const Partial& each : from.partial) {
    if (to.is_partial(each.axis)) {
      continue;
    }
    for (const std::size_t d : splittable) {
      if (each.reduction == Reduction::sum && extends(from.along(d), to.along(d), each.axis)) {
        return Transition{
            .kind = Transition::Kind::reduce_scatter, .axis = each.axis, .dim = d, .halo = own_halo_along(to, d)};
      }
    }
    return Transition{.kind = Transition::Kind::all_reduce, .axis = each.axis, .reduction = each.reduction};
  }
  if (!from.flat.empty() && (from.dims != to.dims || from.halos != to.halos || !is_prefix(from.flat, to.flat))) {
    return Transition{.kind = Transition::Kind::all_gather, .axis = from.flat.back(), .dim = mesh::flattened};
  }
  for (std::size_t d = 0; d < from.dims.size(); ++d) {
    if (!is_left(from, to, d)) {
      continue;
    }
    const AxisId axis = from.dims[d].back();
    for (std::size_t e = 0; e < from.dims.size(); ++e) {
      if (e != d && extends(from.dims[e], to.dims[e], axis)) {
        return Transition{
            .kind = Transition::Kind::all_to_all, .axis = axis, .dim = e, .from_dim = d, .halo = own_halo_along(to, e)};
      }
    }
    return Transition{.kind = Transition::Kind::all_gather, .axis = axis, .dim = d};
  }
  for (const mesh::Halo& halo : to.halos) {
    if (std::ranges::find(from.halos, halo) == from.halos.end()) {
      return Transition{
          .kind = Transition::Kind::exchange, .axis = to.dims[halo.dim].back(), .dim = halo.dim, .halo = halo};
    }
  }
  return std::nullopt;
}

Placement after(const Transition& step, Placement placement) {
  const auto reduce = [&] {
    std::erase_if(placement.partial, [&](const Partial& each) { return each.axis == step.axis; });
  };
  const auto leave_halo_of = [&](std::size_t dim) {
    std::erase_if(placement.halos, [&](const mesh::Halo& each) { return each.dim == dim; });
  };
  const auto take_halo = [&] {
    if (step.halo) {
      leave_halo_of(step.dim);
      placement.halos.push_back(*step.halo);
      std::ranges::sort(placement.halos);
    }
  };
  switch (step.kind) {
    case Transition::Kind::slice:
      if (!placement.splits(step.axis)) {
        placement.along(step.dim).push_back(step.axis);
      }
      take_halo();
      break;
    case Transition::Kind::all_reduce: reduce(); break;
    case Transition::Kind::reduce_scatter:
      reduce();
      placement.along(step.dim).push_back(step.axis);
      take_halo();
      break;
    case Transition::Kind::all_gather:
      placement.along(step.dim).pop_back();
      leave_halo_of(step.dim);
      break;
    case Transition::Kind::all_to_all:
      placement.dims[step.from_dim].pop_back();
      leave_halo_of(step.from_dim);
      placement.dims[step.dim].push_back(step.axis);
      take_halo();
      break;
    case Transition::Kind::send:
    case Transition::Kind::receive: break;
    case Transition::Kind::exchange: take_halo(); break;
    case Transition::Kind::add_shared:
      reduce();
      take_halo();
      break;
    case Transition::Kind::hook: reduce(); break;
  }
  return placement;
}

Finalization finalization_of(const graph::State& state, const Placement& stored, const Placement& update,
                             std::vector<Partial> partial) {
  Finalization finalization{.steps = {}, .after = stored};
  std::erase_if(partial, [&](const Partial& each) { return stored.varies(each.axis); });
  for (bool found = true; found;) {
    found = false;
    for (const std::size_t d : splittable_dims(finalization.after, update)) {
      const auto next = std::find_if(partial.begin(), partial.end(), [&](const Partial& each) {
        return each.reduction == Reduction::sum && mesh::leads(state.type.shape, d) &&
               (d == mesh::flattened || update.halo(d) == nullptr) &&
               extends(finalization.after.along(d), update.along(d), each.axis);
      });
      if (next != partial.end()) {
        found = true;
        finalization.steps.push_back({.kind = Transition::Kind::reduce_scatter, .axis = next->axis, .dim = d});
        finalization.after.along(d).push_back(next->axis);
        partial.erase(next);
        break;
      }
    }
  }
  for (const Partial& each : partial) {
    finalization.steps.push_back(
        {.kind = Transition::Kind::all_reduce, .axis = each.axis, .reduction = each.reduction});
  }
  return finalization;
}

namespace {

/// Removes the all_reduce over `axis` from the steps; an axis of a single rank needs none. Returns false if there is
/// none, or if the finalization splits the tensor.
bool take_sum(std::vector<Transition>& steps, AxisId axis, const mesh::Mesh& mesh) {
  const bool whole = std::all_of(steps.begin(), steps.end(),
                                 [](const Transition& step) { return step.kind == Transition::Kind::all_reduce; });
  if (mesh.size(axis) == 1) {
    return whole;
  }
  const auto sum = std::find_if(steps.begin(), steps.end(), [&](const Transition& step) { return step.axis == axis; });
  if (!whole || sum == steps.end()) {
    return false;
  }
  steps.erase(sum);
  return true;
}

}  // namespace

void hook_finalizations(const graph::Graph& graph, const Placements& placements,
                        IdVector<graph::StateId, Finalization>& finalizations) {
  const PlacedHook* hook = placements.find_hook(plan::HookKind::sync_gradients);
  for (const graph::StateId s : graph.states.ids()) {
    const graph::State& state = graph.states[s];
    if (hook == nullptr || state.kind != graph::StateKind::gradient || !hook->numbers.contains(state.of_parameter)) {
      continue;
    }
    std::vector<Transition>& steps = finalizations[s].steps;
    if (!placements.states[s].varies(hook->axis) && !take_sum(steps, hook->axis, placements.mesh)) {
      throw Error(ErrorCode::job,
                  fmt::format("the hook sync_gradients stands for an all_reduce over mesh axis '{}', and there is none "
                              "of {}, whose gradient is {} and whose optimizer state is {}: give the hook other "
                              "tensors, or place both whole",
                              placements.mesh.axes[hook->axis].name, graph.states[state.of_parameter].name,
                              to_string(placements.states[s], placements.mesh),
                              to_string(placements.updates[s], placements.mesh)));
    }
    steps.push_back({.kind = Transition::Kind::hook, .axis = hook->axis});
  }
}

}  // namespace shardrun::partition
