#include "core/partition/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "core/base/error.h"
#include "core/partition/pipeline.h"

namespace shardrun::partition {
namespace {

/// What a parameter's elements take where programs run; the reference device is for checking, not for planning.
constexpr std::uint64_t element_bytes = 4;

std::uint64_t bytes_of(const graph::TensorType& type) {
  return static_cast<std::uint64_t>(graph::element_count(type)) * element_bytes;
}

void add_axes(std::map<std::string, std::int64_t>& axes, const graph::TensorType& type) {
  for (std::size_t d = 0; d < type.shape.size(); ++d) {
    std::int64_t& size = axes[type.axes[d]];
    size = std::max(size, type.shape[d]);
  }
}

void add_cost(plugins::LayerSummary& layer, graph::Phase phase, std::uint64_t flops) {
  switch (phase) {
    case graph::Phase::forward: layer.forward_flops += flops; break;
    case graph::Phase::backward_input: layer.backward_input_flops += flops; break;
    case graph::Phase::backward_weight: layer.backward_weight_flops += flops; break;
    case graph::Phase::update: break;
  }
}

/// The layers between what is before the first and what is behind the last.
std::vector<plugins::LayerSummary> layer_costs(const graph::Graph& graph,
                                               const std::vector<std::int64_t>& microbatch_rows) {
  std::vector<plugins::LayerSummary> layers(static_cast<std::size_t>(graph.layers) + 2);
  layers.front().name = "before";
  layers.back().name = "behind";
  for (std::int32_t l = 0; l < graph.layers; ++l) {
    layers[static_cast<std::size_t>(l) + 1].name = fmt::format("layer.{}", l);
  }
  // A parameter counts where it is first used.
  std::vector<std::int32_t> used_in(graph.states.size(), graph.layers);
  for (const std::int64_t rows : microbatch_rows) {
    const graph::Function* function = graph.find(graph::Role::repeated, rows);
    for (std::size_t n = 0; function != nullptr && n < function->nodes.size(); ++n) {
      const graph::Node& node = function->nodes[n];
      add_cost(layers[static_cast<std::size_t>(node.layer + 1)], node.phase,
               static_cast<std::uint64_t>(graph::flops(*function, node)));
      for (const graph::ValueId id : node.inputs) {
        const graph::StateId state = function->values[static_cast<std::size_t>(id)].state;
        if (state >= 0) {
          std::int32_t& first = used_in[static_cast<std::size_t>(state)];
          first = std::min(first, node.layer);
        }
      }
    }
  }
  for (std::size_t s = 0; s < graph.states.size(); ++s) {
    if (graph.states[s].kind == graph::StateKind::parameter) {
      layers[static_cast<std::size_t>(used_in[s] + 1)].parameter_bytes += bytes_of(graph.states[s].type);
    }
  }
  return layers;
}

std::vector<plugins::CutPointSummary> cut_points(const graph::Graph& graph) {
  std::map<std::string_view, const graph::TensorType*> types;  // of the first function that has it
  for (const graph::CutPoint& point : graph.cut_points) {
    types.emplace(point.name, nullptr);
  }
  for (const graph::Function& function : graph.functions) {
    for (const graph::Value& value : function.values) {
      const auto found = value.cut_point.empty() ? types.end() : types.find(value.cut_point);
      if (found != types.end() && found->second == nullptr) {
        found->second = &value.type;
      }
    }
  }
  std::vector<plugins::CutPointSummary> points;
  for (const graph::CutPoint& point : graph.cut_points) {
    if (const graph::TensorType* type = types.at(point.name)) {
      points.push_back({point.name, type->shape, type->axes, bytes_of(*type), point.layer});
    }
  }
  return points;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ",") + name;
  }
  return text.empty() ? "-" : text;
}

std::string join(const plugins::DimSplits& dims) {
  std::string text;
  for (const std::vector<std::string>& dim : dims) {
    text += (text.empty() ? "" : " | ") + join(dim);
  }
  return "[" + text + "]";
}

const char* role_name(plugins::TensorRole role) noexcept {
  switch (role) {
    case plugins::TensorRole::store: return "store";
    case plugins::TensorRole::use: return "use";
    case plugins::TensorRole::gradient: return "gradient";
    case plugins::TensorRole::optimizer: return "optimizer";
  }
  return "?";
}

}  // namespace

std::int64_t Plan::ranks() const noexcept {
  std::int64_t ranks = 1;
  for (const plugins::MeshAxis& axis : draft.mesh) {
    ranks *= axis.size;
  }
  return ranks;
}

plugins::StrategyRequest describe(const graph::Graph& graph, const std::vector<std::int64_t>& microbatch_rows) {
  plugins::StrategyRequest request;
  std::map<std::string, std::int64_t> axes;
  for (const graph::State& state : graph.states) {
    const bool parameter = state.kind == graph::StateKind::parameter;
    if (parameter || state.kind == graph::StateKind::field) {
      request.tensors.push_back({.name = state.name,
                                 .kind = parameter ? plugins::TensorKind::parameter : plugins::TensorKind::state,
                                 .shape = state.type.shape,
                                 .axes = state.type.axes,
                                 .bytes = bytes_of(state.type),
                                 .layer = state.layer});
      add_axes(axes, state.type);
    }
  }
  for (const graph::Function& function : graph.functions) {
    for (const graph::Port& input : function.inputs) {
      add_axes(axes, function.values[static_cast<std::size_t>(input.value)].type);
    }
  }
  for (const auto& [name, size] : axes) {
    request.axes.push_back({name, size});
  }
  request.cut_points = cut_points(graph);
  std::vector<plugins::LayerSummary> layers = layer_costs(graph, microbatch_rows);
  request.before = std::move(layers.front());
  request.behind = std::move(layers.back());
  request.layers.assign(std::make_move_iterator(layers.begin() + 1), std::make_move_iterator(layers.end() - 1));
  request.microbatches = static_cast<std::uint32_t>(std::max<std::size_t>(1, microbatch_rows.size()));
  return request;
}

Plan make_plan(const plugins::Strategy& strategy, const plugins::StrategyRequest& request) {
  Plan plan{.strategy = strategy.manifest().name, .draft = strategy.make_plan(request), .hooks = nullptr};
  plan.hooks = strategy.hooks(request, plan.draft);
  return plan;
}

void add_hook_states(graph::Graph& graph, const Plan& plan) {
  std::map<std::string, graph::StateId> known;
  for (std::size_t s = 0; s < graph.states.size() && !plan.draft.hooks.empty(); ++s) {
    known.emplace(graph.states[s].name, static_cast<graph::StateId>(s));
  }
  for (const plugins::Hook& hook : plan.draft.hooks) {
    const auto axis = std::ranges::find(plan.draft.mesh, hook.mesh_axis, &plugins::MeshAxis::name);
    if (axis->size == 1) {
      continue;  // there is nobody to do it with
    }
    const auto kind = hook.kind == plugins::HookKind::sync_gradients ? graph::StateKind::beside_gradient
                                                                     : graph::StateKind::beside_parameter;
    for (const plugins::HookState& state : hook.states) {
      for (const std::string& tensor : hook.tensors) {
        const graph::StateId parameter = known.at(tensor);
        graph::State of = graph.states[static_cast<std::size_t>(parameter)];
        const std::string name = fmt::format("{}/{}", state.name, tensor);
        if (!known.emplace(name, static_cast<graph::StateId>(graph.states.size())).second) {
          throw Error(ErrorCode::job,
                      fmt::format("strategy {} keeps a state '{}' beside its tensors, and the model has "
                                  "a {} of that name: the strategy has to call it otherwise",
                                  plan.strategy, state.name, name));
        }
        graph.states.push_back({.name = name,
                                .type = of.type,
                                .kind = kind,
                                .layer = of.layer,
                                .of_parameter = parameter,
                                .copies_parameter = state.copies_tensor});
      }
    }
  }
}

std::string to_string(const Plan& plan) {
  std::string text = fmt::format("strategy {}: {} ranks\n", plan.strategy, plan.ranks());
  for (const plugins::MeshAxis& axis : plan.draft.mesh) {
    text += fmt::format("mesh axis {} {}\n", axis.name, axis.size);
  }
  for (const plugins::AxisPlacement& axis : plan.draft.axes) {
    text += fmt::format("axis {} -> {}\n", axis.axis, join(axis.mesh_axes));
  }
  for (const plugins::TensorPlacement& tensor : plan.draft.tensors) {
    text += fmt::format("tensor {} {} {}\n", tensor.tensor, role_name(tensor.role),
                        join(tensor.dims) + (tensor.flat.empty() ? "" : " flat " + join(tensor.flat)));
  }
  for (const plugins::TensorGather& tensor : plan.draft.gathers) {
    text += fmt::format("gather {} at use, unit {}{}\n", tensor.tensor, tensor.unit, tensor.keep ? ", kept" : "");
  }
  for (const plugins::VaryingTensor& tensor : plan.draft.varying) {
    text += fmt::format("tensor {} varies over {}\n", tensor.tensor, tensor.mesh_axis);
  }
  for (const plugins::Hook& hook : plan.draft.hooks) {
    text += fmt::format("hook {} over {}, every {}: {}\n", to_string(hook.kind), hook.mesh_axis, hook.every,
                        join(hook.tensors));
    for (const plugins::HookState& state : hook.states) {
      text += fmt::format("state {} of it, at first {}\n", state.name, state.copies_tensor ? "the tensor" : "zero");
    }
  }
  const plugins::Pipeline& pipeline = plan.draft.pipeline;
  for (std::size_t c = 0; c < pipeline.chunks.size(); ++c) {
    text += fmt::format("chunk {} from layer {} on stage {}\n", c, pipeline.chunks[c].first_layer,
                        pipeline.chunks[c].stage);
  }
  for (std::size_t stage = 0; stage < pipeline.actions.size(); ++stage) {
    text += fmt::format("stage {}:", stage);
    for (const plugins::Action& action : pipeline.actions[stage]) {
      text += " " + to_string(action);
    }
    text += "\n";
  }
  for (const plugins::CutPointPlacement& point : plan.draft.cut_points) {
    text += fmt::format("cut point {} {}\n", point.cut_point, join(point.dims));
  }
  return text;
}

}  // namespace shardrun::partition
