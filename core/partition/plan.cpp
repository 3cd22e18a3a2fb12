#include "core/partition/plan.h"

#include <fmt/format.h>

#include <map>
#include <set>

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

std::vector<plugins::LayerSummary> layer_costs(const graph::Graph& graph,
                                               const std::vector<std::int64_t>& microbatch_rows) {
  std::vector<plugins::LayerSummary> layers(static_cast<std::size_t>(graph.layers));
  for (std::size_t l = 0; l < layers.size(); ++l) {
    layers[l].name = fmt::format("layer.{}", l);
  }
  for (const graph::State& state : graph.states) {
    if (state.kind == graph::StateKind::parameter && state.layer >= 0) {
      layers[static_cast<std::size_t>(state.layer)].parameter_bytes += bytes_of(state.type);
    }
  }
  for (const std::int64_t rows : microbatch_rows) {
    const graph::Function* micro = graph.find("micro", rows);
    for (std::size_t n = 0; micro != nullptr && n < micro->nodes.size(); ++n) {
      if (micro->nodes[n].layer >= 0) {
        add_cost(layers[static_cast<std::size_t>(micro->nodes[n].layer)], micro->nodes[n].phase,
                 static_cast<std::uint64_t>(graph::flops(*micro, micro->nodes[n])));
      }
    }
  }
  return layers;
}

std::vector<plugins::CutPointSummary> cut_points(const graph::Graph& graph) {
  std::vector<plugins::CutPointSummary> points;
  for (const graph::CutPoint& point : graph.cut_points) {
    for (const graph::Function& function : graph.functions) {
      for (const graph::Value& value : function.values) {
        if (value.name == point.name && (points.empty() || points.back().name != point.name)) {
          points.push_back({point.name, value.type.shape, value.type.axes, bytes_of(value.type), point.layer});
        }
      }
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
  request.layers = layer_costs(graph, microbatch_rows);
  return request;
}

Plan make_plan(const plugins::Strategy& strategy, const plugins::StrategyRequest& request) {
  return {.strategy = strategy.manifest().name, .draft = strategy.make_plan(request)};
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
    text += fmt::format("tensor {} {} {}\n", tensor.tensor, role_name(tensor.role), join(tensor.dims));
  }
  for (const plugins::TensorGather& tensor : plan.draft.gathers) {
    text += fmt::format("gather {} at use, unit {}{}\n", tensor.tensor, tensor.unit, tensor.keep ? ", kept" : "");
  }
  for (const plugins::CutPointPlacement& point : plan.draft.cut_points) {
    text += fmt::format("cut point {} {}\n", point.cut_point, join(point.dims));
  }
  return text;
}

}  // namespace shardrun::partition
