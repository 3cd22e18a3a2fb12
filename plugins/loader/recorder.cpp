#include "plugins/loader/recorder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/sdk/strategy/glob.hpp>

#include <algorithm>
#include <set>

#include "core/base/suggest.h"
#include "core/base/text.h"
#include "plugins/loader/call.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

std::string_view required(const char* text, std::string_view what) {
  if (text == nullptr || *text == '\0') {
    refuse_with(fmt::format("{} is empty", what));
  }
  if (const std::string shown = printable(text); shown != text) {
    refuse_with(fmt::format("{}, '{}', holds control characters or bytes that are no UTF-8", what, excerpt(shown)));
  }
  return text;
}

template <class Named>
std::vector<std::string> names_of(const std::vector<Named>& items) {
  std::vector<std::string> names;
  std::ranges::transform(items, std::back_inserter(names), &Named::name);
  return names;
}

/// A hint for messages: "(known: a, b)". Of a long list it shows only the beginning.
std::string known(const std::vector<std::string>& names) {
  constexpr std::size_t shown = 20;
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), shown));
  return names.empty() ? "(there is none)"
                       : fmt::format("(known: {}{})", fmt::join(names.begin(), end, ", "),
                                     names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : "");
}

template <class Named>
std::vector<std::size_t> matches_of(std::string_view glob, const std::vector<Named>& items, std::string_view what) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (sdk::glob_matches(glob, items[i].name)) {
      found.push_back(i);
    }
  }
  if (found.empty()) {
    const std::vector<std::string> names = names_of(items);
    refuse_with(fmt::format("'{}' matches no {}{} {}", glob, what, did_you_mean(glob, names), known(names)));
  }
  return found;
}

std::optional<plan::TensorRole> role_of(std::uint32_t role) {
  switch (role) {
    case SR_ROLE_STORE: return plan::TensorRole::store;
    case SR_ROLE_USE: return plan::TensorRole::use;
    case SR_ROLE_GRADIENT: return plan::TensorRole::gradient;
    case SR_ROLE_OPTIMIZER: return plan::TensorRole::optimizer;
    default: return std::nullopt;
  }
}

}  // namespace

struct PlanRecorder::Split {
  std::string axis;  // "" if the dimension is given by its index
  std::uint32_t dim = 0;
  std::vector<std::string> mesh_axes;

  /// The dimension of `item` (a tensor or cut point) to which the split refers.
  template <class Item>
  [[nodiscard]] std::size_t dim_of(const Item& item) const {
    if (axis.empty()) {
      if (dim == SR_DIM_FLAT) {
        refuse_with(fmt::format("the flattened elements of '{}' cannot be split: of a cut point only dimensions can",
                                item.name));
      }
      if (dim >= item.shape.size()) {
        refuse_with(
            fmt::format("'{}' has {} dimensions, so there is no dimension {}", item.name, item.shape.size(), dim));
      }
      return dim;
    }
    const auto times = std::ranges::count(item.axes, axis);
    if (times != 1) {
      refuse_with(fmt::format("'{}' has {} dimensions named '{}', expected one; its axes are [{}]", item.name, times,
                              axis, fmt::join(item.axes, ", ")));
    }
    return static_cast<std::size_t>(std::ranges::find(item.axes, axis) - item.axes.begin());
  }

  /// Removes the split of the flattened elements from `splits`, and returns its mesh axes.
  [[nodiscard]] static std::vector<std::string> take_flat(std::vector<Split>& splits) {
    const auto is_flat = [](const Split& split) { return split.axis.empty() && split.dim == SR_DIM_FLAT; };
    const auto flat = std::ranges::find_if(splits, is_flat);
    if (flat == splits.end()) {
      return {};
    }
    std::vector<std::string> mesh_axes = std::move(flat->mesh_axes);
    splits.erase(flat);
    if (std::ranges::any_of(splits, is_flat)) {
      refuse_with("the flattened elements are split twice");
    }
    return mesh_axes;
  }

  template <class Item>
  [[nodiscard]] static plan::DimSplits over(const Item& item, const std::vector<Split>& splits) {
    plan::DimSplits dims(item.shape.size());
    std::set<std::size_t> seen;
    for (const Split& split : splits) {
      const std::size_t dim = split.dim_of(item);
      if (!seen.insert(dim).second) {
        refuse_with(fmt::format("dimension {} of '{}' is split twice", dim, item.name));
      }
      dims[dim] = split.mesh_axes;
    }
    return dims;
  }
};

PlanRecorder::PlanRecorder(const StrategyRequest& request) : request_(request) {
  writer_.struct_size = sizeof(writer_);
  writer_.self = this;
  writer_.add_mesh_axis = [](void* self, const char* name, std::uint32_t size, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "add_mesh_axis", name,
                                   [&](PlanRecorder& to) { to.add_mesh_axis(name, size); });
  };
  writer_.place_axis = [](void* self, const char* axis, const char* const* mesh_axes, std::uint32_t count,
                          sr_error* error) {
    return record_in<PlanRecorder>(self, error, "place_axis", axis,
                                   [&](PlanRecorder& to) { to.place_axis(axis, mesh_axes, count); });
  };
  writer_.place_tensor = [](void* self, const char* glob, std::uint32_t role, const sr_split* splits,
                            std::uint32_t count, std::uint32_t stride, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "place_tensor", glob,
                                   [&](PlanRecorder& to) { to.place_tensor(glob, role, splits, count, stride); });
  };
  writer_.place_cut_point = [](void* self, const char* glob, const sr_split* splits, std::uint32_t count,
                               std::uint32_t stride, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "place_cut_point", glob,
                                   [&](PlanRecorder& to) { to.place_cut_point(glob, splits, count, stride); });
  };
  writer_.set_bucket_bytes = [](void* self, std::uint64_t bytes, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "set_bucket_bytes", nullptr,
                                   [&](PlanRecorder& to) { to.set_bucket_bytes(bytes); });
  };
  writer_.gather_at_use = [](void* self, const char* glob, const char* unit, std::uint32_t keep, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "gather_at_use", glob,
                                   [&](PlanRecorder& to) { to.gather_at_use(glob, unit, keep); });
  };
  writer_.place_layers = [](void* self, const char* mesh_axis, const sr_chunk* chunks, std::uint32_t count,
                            std::uint32_t stride, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "place_layers", mesh_axis,
                                   [&](PlanRecorder& to) { to.place_layers(mesh_axis, chunks, count, stride); });
  };
  writer_.set_actions = [](void* self, std::uint32_t stage, const sr_action* actions, std::uint32_t count,
                           std::uint32_t stride, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "set_actions", nullptr,
                                   [&](PlanRecorder& to) { to.set_actions(stage, actions, count, stride); });
  };
  writer_.sync_gradients = [](void* self, const char* glob, const char* mesh_axis, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "sync_gradients", glob, [&](PlanRecorder& to) {
      to.set_hook(plan::HookKind::sync_gradients, glob, mesh_axis, 1);
    });
  };
  writer_.after_step = [](void* self, const char* glob, const char* mesh_axis, std::uint32_t every, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "after_step", glob, [&](PlanRecorder& to) {
      to.set_hook(plan::HookKind::after_step, glob, mesh_axis, every);
    });
  };
  writer_.add_hook_state = [](void* self, std::uint32_t hook, const char* name, std::uint32_t begins, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "add_hook_state", name,
                                   [&](PlanRecorder& to) { to.add_hook_state(hook, name, begins); });
  };
  writer_.vary = [](void* self, const char* glob, const char* mesh_axis, sr_error* error) {
    return record_in<PlanRecorder>(self, error, "vary", glob, [&](PlanRecorder& to) { to.vary(glob, mesh_axis); });
  };
}

void PlanRecorder::add_mesh_axis(const char* name, std::uint32_t size) {
  const std::string_view given = required(name, "the name");
  if (size == 0) {
    refuse_with("its size is 0, expected at least 1");
  }
  if (std::ranges::find(mesh_, given, &plan::MeshAxis::name) != mesh_.end()) {
    refuse_with("the mesh has an axis of that name already");
  }
  mesh_.push_back({std::string(given), size});
}

void PlanRecorder::place_axis(const char* axis, const char* const* mesh_axes, std::uint32_t count) {
  const std::string_view given = required(axis, "the axis");
  const auto found = std::ranges::find(request_.graph.axes, given, &sdk::Axis::name);
  if (found == request_.graph.axes.end()) {
    const std::vector<std::string> names = names_of(request_.graph.axes);
    refuse_with(fmt::format("the graph has no axis of that name{} {}", did_you_mean(given, names), known(names)));
  }
  axes_[static_cast<std::size_t>(found - request_.graph.axes.begin())] = checked_mesh_axes(mesh_axes, count);
}

void PlanRecorder::place_tensor(const char* glob, std::uint32_t role, const sr_split* splits, std::uint32_t count,
                                std::uint32_t stride) {
  const std::optional<plan::TensorRole> known_role = role_of(role);
  if (!known_role) {
    refuse_with(fmt::format("there is no role {}", role));
  }
  std::vector<Split> read = read_splits(splits, count, stride);
  const std::vector<std::string> flat = Split::take_flat(read);
  for (const std::size_t index : matches_of(required(glob, "the name"), request_.graph.tensors, "tensor")) {
    const sdk::Tensor& tensor = request_.graph.tensors[index];
    tensors_[{index, *known_role}] = {tensor.name, *known_role, Split::over(tensor, read), flat};
  }
}

void PlanRecorder::place_cut_point(const char* glob, const sr_split* splits, std::uint32_t count,
                                   std::uint32_t stride) {
  const std::vector<Split> read = read_splits(splits, count, stride);
  for (const std::size_t index : matches_of(required(glob, "the name"), request_.graph.cut_points, "cut point")) {
    cut_points_[index] = Split::over(request_.graph.cut_points[index], read);
  }
}

void PlanRecorder::gather_at_use(const char* glob, const char* unit, std::uint32_t keep) {
  if (keep > 1) {
    refuse_with(fmt::format("keep is {}, expected 0 or 1", keep));
  }
  for (const std::size_t index : matches_of(required(glob, "the name"), request_.graph.tensors, "tensor")) {
    const std::string& tensor = request_.graph.tensors[index].name;
    gathers_[index] = {tensor, unit == nullptr ? tensor : std::string(required(unit, "the unit")), keep == 1};
  }
}

void PlanRecorder::place_layers(const char* mesh_axis, const sr_chunk* chunks, std::uint32_t count,
                                std::uint32_t stride) {
  if (!pipeline_.mesh_axis.empty()) {
    refuse_with("the layers have been placed already");
  }
  const std::string axis = checked_mesh_axes(&mesh_axis, 1).front();
  const std::uint32_t stages = std::ranges::find(mesh_, axis, &plan::MeshAxis::name)->size;
  if (count == 0) {
    refuse_with("a pipeline has at least one chunk");
  }
  for (std::uint32_t c = 0; c < count; ++c) {
    const auto raw = read_element<sr_chunk>(chunks, stride, c, SR_CHUNK_SIZE_1_1, fmt::format("chunk {}", c));
    const std::uint32_t least = c == 0 ? 0 : pipeline_.chunks.back().first_layer;
    const std::size_t most = c == 0 ? 0 : request_.graph.layers.size();
    if (raw.first_layer < least || raw.first_layer > most) {
      refuse_with(fmt::format("chunk {} begins with layer {}, expected {} to {}", c, raw.first_layer, least, most));
    }
    if (raw.stage >= stages) {
      refuse_with(fmt::format("chunk {} is on stage {}, but mesh axis '{}' has {}", c, raw.stage, axis, stages));
    }
    pipeline_.chunks.push_back({raw.first_layer, raw.stage});
  }
  pipeline_.mesh_axis = axis;
  pipeline_.actions.resize(stages);
}

void PlanRecorder::set_actions(std::uint32_t stage, const sr_action* actions, std::uint32_t count,
                               std::uint32_t stride) {
  if (stage >= pipeline_.actions.size()) {
    refuse_with(fmt::format("stage {}: there are {} stages; layers are placed first", stage, pipeline_.actions.size()));
  }
  std::vector<plan::Action> list;
  for (std::uint32_t a = 0; a < count; ++a) {
    const auto raw = read_element<sr_action>(actions, stride, a, SR_ACTION_SIZE_1_1, fmt::format("action {}", a));
    if (raw.kind < SR_ACTION_FORWARD || raw.kind > SR_ACTION_BACKWARD_WEIGHT) {
      refuse_with(fmt::format("stage {}, action {}: there is no kind {}", stage, a, raw.kind));
    }
    list.push_back({static_cast<plan::Action::Kind>(raw.kind - SR_ACTION_FORWARD), raw.chunk, raw.microbatch});
  }
  pipeline_.actions[stage] = std::move(list);
}

void PlanRecorder::set_hook(plan::HookKind kind, const char* glob, const char* mesh_axis, std::uint32_t every) {
  if (every == 0) {
    refuse_with("every is 0 steps, expected at least 1");
  }
  plan::Hook hook{.kind = kind, .mesh_axis = checked_mesh_axes(&mesh_axis, 1).front(), .every = every};
  for (const std::size_t index : matches_of(required(glob, "the name"), request_.graph.tensors, "tensor")) {
    if (request_.graph.tensors[index].kind == SR_TENSOR_PARAMETER) {
      hook.tensors.push_back(request_.graph.tensors[index].name);
    }
  }
  if (hook.tensors.empty()) {
    refuse_with("what it matches is not trained, so there is nothing that a hook could be given");
  }
  if (std::ranges::find(hooks_, kind, &plan::Hook::kind) != hooks_.end()) {
    refuse_with("the plan has this hook already: it is set once, with a glob for all of its tensors");
  }
  hooks_.push_back(std::move(hook));
}

void PlanRecorder::add_hook_state(std::uint32_t hook, const char* name, std::uint32_t begins) {
  const std::string given(required(name, "the name"));
  if (given.find('/') != std::string::npos || given.size() > 64) {
    refuse_with("expected at most 64 characters, and no '/'");
  }
  const auto found = std::ranges::find_if(hooks_, [&](const plan::Hook& each) {
    return hook == (each.kind == plan::HookKind::sync_gradients ? SR_HOOK_SYNC_GRADIENTS : SR_HOOK_AFTER_STEP);
  });
  if (found == hooks_.end()) {
    refuse_with(fmt::format("the plan has no hook {}: it is set before its states", hook));
  }
  if (begins != SR_HOOK_STATE_ZERO && (begins != SR_HOOK_STATE_TENSOR || hook != SR_HOOK_AFTER_STEP)) {
    refuse_with(fmt::format("a state of this hook cannot begin as {}", begins));
  }
  const bool taken = std::ranges::any_of(hooks_, [&](const plan::Hook& each) {
    return std::ranges::find(each.states, given, &plan::HookState::name) != each.states.end();
  });
  if (taken) {
    refuse_with("there is a state of that name already");
  }
  found->states.push_back({.name = given, .copies_tensor = begins == SR_HOOK_STATE_TENSOR});
}

void PlanRecorder::vary(const char* glob, const char* mesh_axis) {
  const std::string axis = checked_mesh_axes(&mesh_axis, 1).front();
  for (const std::size_t index : matches_of(required(glob, "the name"), request_.graph.tensors, "tensor")) {
    varying_[index].insert(axis);
  }
}

std::vector<std::string> PlanRecorder::checked_mesh_axes(const char* const* mesh_axes, std::uint32_t count) const {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (mesh_axes == nullptr) {
      refuse_with(fmt::format("{} mesh axes are announced and none is given", count));
    }
    const std::string_view name = required(mesh_axes[i], "a mesh axis");
    if (std::ranges::find(mesh_, name, &plan::MeshAxis::name) == mesh_.end()) {
      const std::vector<std::string> added = names_of(mesh_);
      refuse_with(
          fmt::format("the plan has added no mesh axis '{}'{} {}", name, did_you_mean(name, added), known(added)));
    }
    if (std::ranges::find(names, name) != names.end()) {
      refuse_with(fmt::format("mesh axis '{}' occurs twice in one placement", name));
    }
    names.emplace_back(name);
  }
  return names;
}

std::vector<PlanRecorder::Split> PlanRecorder::read_splits(const sr_split* splits, std::uint32_t count,
                                                           std::uint32_t stride) const {
  std::vector<Split> read;
  std::set<std::string> used;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto raw = read_element<sr_split>(splits, stride, i, SR_SPLIT_SIZE_1_0, fmt::format("split {}", i));
    read.push_back(
        {raw.axis != nullptr ? raw.axis : "", raw.dim, checked_mesh_axes(raw.mesh_axes, raw.mesh_axis_count)});
    for (const std::string& name : read.back().mesh_axes) {
      if (!used.insert(name).second) {
        refuse_with(fmt::format("mesh axis '{}' occurs twice in one placement", name));
      }
    }
  }
  return read;
}

plan::Plan PlanRecorder::finish() const {
  if (refusal()) {
    throw *refusal();
  }
  std::uint64_t product = 1;
  std::vector<std::string> sizes;
  for (const plan::MeshAxis& axis : mesh_) {
    product = std::min<std::uint64_t>(product * axis.size, UINT32_MAX);
    sizes.push_back(fmt::format("{} = {}", axis.name, axis.size));
  }
  if (product != request_.job.ranks) {
    refuse_with(fmt::format("its mesh ({}) has {} places, but the job has {} ranks",
                            sizes.empty() ? "no axis" : fmt::format("{}", fmt::join(sizes, ", ")), product,
                            request_.job.ranks));
  }
  for (const sdk::MeshAxis& wanted : request_.job.mesh) {
    if (wanted.size > 1 && std::ranges::find(mesh_, plan::MeshAxis{wanted.name, wanted.size}) == mesh_.end()) {
      refuse_with(fmt::format("the job's mesh has {} = {}, but the plan's has not ({})", wanted.name, wanted.size,
                              sizes.empty() ? "no axis" : fmt::format("{}", fmt::join(sizes, ", "))));
    }
  }
  plan::Plan plan;
  plan.mesh = mesh_;
  for (const auto& [index, mesh_axes] : axes_) {
    plan.axes.push_back({request_.graph.axes[index].name, mesh_axes});
  }
  for (const auto& [key, placement] : tensors_) {
    plan.tensors.push_back(placement);
  }
  for (const auto& [index, dims] : cut_points_) {
    plan.cut_points.push_back({request_.graph.cut_points[index].name, dims});
  }
  for (const auto& [index, gather] : gathers_) {
    plan.gathers.push_back(gather);
  }
  plan.pipeline = pipeline_;
  plan.bucket_bytes = bucket_bytes_;
  plan.hooks = hooks_;
  std::ranges::sort(plan.hooks, {}, &plan::Hook::kind);
  for (const auto& [index, mesh_axes] : varying_) {
    for (const std::string& axis : mesh_axes) {
      plan.varying.push_back({request_.graph.tensors[index].name, axis});
    }
  }
  return plan;
}

}  // namespace shardrun::plugins
