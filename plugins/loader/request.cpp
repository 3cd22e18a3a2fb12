#include "plugins/loader/request.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "plugins/loader/option_values.h"

namespace shardrun::plugins {
namespace {

std::uint32_t count_of(std::size_t size) { return static_cast<std::uint32_t>(size); }

std::uint32_t kind_number(TensorKind kind) {
  return kind == TensorKind::parameter ? SR_TENSOR_PARAMETER : SR_TENSOR_STATE;
}

}  // namespace

RequestTables::RequestTables(const StrategyRequest& request, const OptionValues& options)
    : options_(raw_options(options)) {
  for (const plan::MeshAxis& axis : request.mesh) {
    mesh_.push_back({sizeof(sr_mesh_axis), axis.size, axis.name.c_str()});
  }
  for (const TensorSummary& tensor : request.tensors) {
    tensors_.push_back({sizeof(sr_tensor), kind_number(tensor.kind), tensor.name.c_str(), tensor.shape.data(),
                        axis_names(tensor.name, tensor.shape, tensor.axes), tensor.bytes, count_of(tensor.shape.size()),
                        tensor.layer, tensor.tied_set, 0});
  }
  for (const LogicalAxis& axis : request.axes) {
    axes_.push_back({sizeof(sr_axis), 0, axis.name.c_str(), axis.size});
  }
  for (const CutPointSummary& point : request.cut_points) {
    cut_points_.push_back({sizeof(sr_cut_point), count_of(point.shape.size()), point.name.c_str(), point.shape.data(),
                           axis_names(point.name, point.shape, point.axes), point.bytes, point.layer, 0});
  }
  const auto raw_layer = [](const LayerSummary& layer) {
    return sr_layer{sizeof(sr_layer),           0,
                    layer.name.c_str(),         layer.parameter_bytes,
                    layer.forward_flops,        layer.backward_input_flops,
                    layer.backward_weight_flops};
  };
  for (const LayerSummary& layer : request.layers) {
    layers_.push_back(raw_layer(layer));
  }
  before_ = raw_layer(request.before);
  behind_ = raw_layer(request.behind);
  for (const ShardingLine& line : request.sharding) {
    sharding_.push_back({sizeof(sr_sharding), 0, line.key.c_str(), line.value.c_str(), line.where.c_str()});
  }
  job_ = {sizeof(sr_job),
          request.ranks,
          mesh_.data(),
          count_of(mesh_.size()),
          sizeof(sr_mesh_axis),
          options_.data(),
          count_of(options_.size()),
          sizeof(sr_option_value),
          request.microbatches,
          0,
          sharding_.data(),
          count_of(sharding_.size()),
          sizeof(sr_sharding)};
  graph_ = {sizeof(sr_graph),
            0,
            tensors_.data(),
            count_of(tensors_.size()),
            sizeof(sr_tensor),
            axes_.data(),
            count_of(axes_.size()),
            sizeof(sr_axis),
            cut_points_.data(),
            count_of(cut_points_.size()),
            sizeof(sr_cut_point),
            layers_.data(),
            count_of(layers_.size()),
            sizeof(sr_layer),
            &before_,
            &behind_};
}

const char* const* RequestTables::axis_names(const std::string& name, const std::vector<std::int64_t>& shape,
                                             const std::vector<std::string>& axes) {
  if (axes.size() != shape.size()) {
    throw Error(ErrorCode::internal,
                fmt::format("'{}' has {} dimensions but {} axis names", name, shape.size(), axes.size()));
  }
  std::vector<const char*> names;
  for (const std::string& axis : axes) {
    names.push_back(axis.c_str());
  }
  return axis_names_.emplace_back(std::move(names)).data();  // moving the outer vector does not move this
}

}  // namespace shardrun::plugins
