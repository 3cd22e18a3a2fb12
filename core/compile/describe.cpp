#include "core/compile/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "core/workload/program.h"

namespace shardrun::compile {
namespace {

using plugins::StrategyRequest;

std::uint64_t bytes_of(const graph::TensorType& type) {
  return static_cast<std::uint64_t>(graph::element_count(type)) * graph::element_bytes(type.dtype);
}

void add_axes(std::map<std::string, std::int64_t>& axes, const graph::TensorType& type) {
  for (std::size_t d = 0; d < type.shape.size(); ++d) {
    std::int64_t& size = axes[type.axes[d]];
    size = std::max(size, type.shape[d]);
  }
}

/// The time of a node in seconds, for its FLOPs or for its operands' bytes, whichever is longer; 0 if the cluster has
/// no rates.
double seconds_of(const graph::Function& function, const graph::Node& node, const job::ClusterSettings& cluster) {
  if (cluster.flops == 0) {
    return 0;
  }
  std::uint64_t bytes = 0;
  for (const std::vector<graph::ValueId>& operands : {node.inputs, node.outputs}) {
    for (const graph::ValueId id : operands) {
      bytes += bytes_of(function.values[id].type);
    }
  }
  return std::max(static_cast<double>(graph::flops(function, node)) / cluster.flops,
                  static_cast<double>(bytes) / cluster.memory_bandwidth);
}

void add_cost(sdk::Layer& layer, graph::Phase phase, std::uint64_t flops) {
  switch (phase) {
    case graph::Phase::forward: layer.forward_flops += flops; break;
    case graph::Phase::backward_input: layer.backward_input_flops += flops; break;
    case graph::Phase::backward_weight: layer.backward_weight_flops += flops; break;
    case graph::Phase::update: break;
  }
}

/// The costs of layers. The first entry is for nodes before all layers, the last one for nodes after all layers.
std::vector<sdk::Layer> layer_costs(const graph::Graph& graph, const std::vector<const graph::Function*>& calls,
                                    const job::ClusterSettings& cluster) {
  std::vector<sdk::Layer> layers(static_cast<std::size_t>(graph.layers) + 2);
  layers.front().name = "before";
  layers.back().name = "behind";
  for (std::int32_t l = 0; l < graph.layers; ++l) {
    layers[static_cast<std::size_t>(l) + 1].name = fmt::format("layer.{}", l);
  }
  // A parameter belongs to the layer that uses it first.
  IdVector<graph::StateId, std::int32_t> used_in(graph.states.size(), graph.layers);
  for (const graph::Function* const function : calls) {
    for (const graph::Node& node : function->nodes) {
      sdk::Layer& layer = layers[static_cast<std::size_t>(node.layer + 1)];
      add_cost(layer, node.phase, static_cast<std::uint64_t>(graph::flops(*function, node)));
      layer.seconds += seconds_of(*function, node, cluster);
      for (const graph::ValueId id : node.inputs) {
        const graph::StateId state = function->values[id].state;
        if (state.exists()) {
          std::int32_t& first = used_in[state];
          first = std::min(first, node.layer);
        }
      }
    }
  }
  for (const graph::StateId s : graph.states.ids()) {
    if (graph.states[s].kind == graph::StateKind::parameter) {
      layers[static_cast<std::size_t>(used_in[s] + 1)].parameter_bytes += bytes_of(graph.states[s].type);
    }
  }
  return layers;
}

std::vector<sdk::CutPoint> cut_points(const graph::Graph& graph) {
  std::map<std::string_view, const graph::TensorType*> types;  // by name: its type in the first function that has it
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
  std::vector<sdk::CutPoint> points;
  for (const graph::CutPoint& point : graph.cut_points) {
    if (const graph::TensorType* type = types.at(point.name)) {
      points.push_back({point.name, type->shape, type->axes, bytes_of(*type), point.layer});
    }
  }
  return points;
}

}  // namespace

StrategyRequest describe(const graph::Graph& graph, const std::vector<std::int64_t>& microbatch_rows,
                         const std::vector<std::int64_t>& forward_rows, const job::ClusterSettings& cluster) {
  std::vector<const graph::Function*> calls;
  for (const std::int64_t rows : microbatch_rows) {
    calls.push_back(graph.find(graph::Role::repeated, rows));
  }
  calls.push_back(forward_rows.empty() ? nullptr : graph.find(workload::forward_function, forward_rows.front()));
  for (const std::string_view name : {workload::prefill_function, workload::decode_function}) {
    const auto found = std::ranges::find(graph.functions, name, &graph::Function::name);
    calls.push_back(found == graph.functions.end() ? nullptr : &*found);
  }
  std::erase(calls, nullptr);
  StrategyRequest request;
  sdk::Graph& described = request.graph;
  std::map<std::string, std::int64_t> axes;
  for (const graph::State& state : graph.states) {
    const bool parameter = state.kind == graph::StateKind::parameter;
    if (parameter || state.kind == graph::StateKind::field || state.kind == graph::StateKind::cache ||
        state.kind == graph::StateKind::output) {
      described.tensors.push_back({.kind = parameter ? SR_TENSOR_PARAMETER : SR_TENSOR_STATE,
                                   .name = state.name,
                                   .shape = state.type.shape,
                                   .axes = state.type.axes,
                                   .bytes = bytes_of(state.type),
                                   .layer = state.layer});
      add_axes(axes, state.type);
    }
  }
  std::map<std::string, std::int64_t> made;  // axes of values that ops make, such as indices and reshaped inputs
  for (const graph::Function& function : graph.functions) {
    for (const graph::Port& input : function.inputs) {
      add_axes(axes, function.values[input.value].type);
    }
    for (const graph::Value& value : function.values) {
      add_axes(made, value.type);
    }
  }
  made.erase("");
  axes.merge(made);
  for (const auto& [name, size] : axes) {
    described.axes.push_back({name, size});
  }
  described.cut_points = cut_points(graph);
  std::vector<sdk::Layer> layers = layer_costs(graph, calls, cluster);
  described.before = std::move(layers.front());
  described.behind = std::move(layers.back());
  described.layers.assign(std::make_move_iterator(layers.begin() + 1), std::make_move_iterator(layers.end() - 1));
  request.job.microbatches = static_cast<std::uint32_t>(std::max<std::size_t>(1, microbatch_rows.size()));
  return request;
}

}  // namespace shardrun::compile
