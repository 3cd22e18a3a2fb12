#include "plugins/loader/request.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardrun::plugins {
namespace {

std::uint32_t count_of(std::size_t size) { return static_cast<std::uint32_t>(size); }

std::uint32_t kind_number(TensorKind kind) {
  return kind == TensorKind::parameter ? SR_TENSOR_PARAMETER : SR_TENSOR_STATE;
}

sr_option_value option_value(const std::string& name, const OptionValue& value) {
  sr_option_value raw{};
  raw.struct_size = sizeof(raw);
  raw.name = name.c_str();
  if (const bool* boolean = std::get_if<bool>(&value)) {
    raw.type = SR_OPTION_BOOLEAN;
    raw.integer = *boolean ? 1 : 0;
  } else if (const std::int64_t* integer = std::get_if<std::int64_t>(&value)) {
    raw.type = SR_OPTION_INTEGER;
    raw.integer = *integer;
  } else if (const double* number = std::get_if<double>(&value)) {
    raw.type = SR_OPTION_NUMBER;
    raw.number = *number;
  } else {
    raw.type = SR_OPTION_TEXT;
    raw.text = std::get<std::string>(value).c_str();
  }
  return raw;
}

}  // namespace

RequestTables::RequestTables(const StrategyRequest& request, const OptionValues& options) {
  for (const MeshAxis& axis : request.mesh) {
    mesh_.push_back({sizeof(sr_mesh_axis), axis.size, axis.name.c_str()});
  }
  for (const auto& [name, value] : options) {
    options_.push_back(option_value(name, value));
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
  for (const LayerSummary& layer : request.layers) {
    layers_.push_back({sizeof(sr_layer), 0, layer.name.c_str(), layer.parameter_bytes, layer.forward_flops,
                       layer.backward_input_flops, layer.backward_weight_flops});
  }
  job_ = {sizeof(sr_job),
          request.ranks,
          mesh_.data(),
          count_of(mesh_.size()),
          sizeof(sr_mesh_axis),
          options_.data(),
          count_of(options_.size()),
          sizeof(sr_option_value)};
  graph_ = {sizeof(sr_graph),         0,
            tensors_.data(),          count_of(tensors_.size()),
            sizeof(sr_tensor),        axes_.data(),
            count_of(axes_.size()),   sizeof(sr_axis),
            cut_points_.data(),       count_of(cut_points_.size()),
            sizeof(sr_cut_point),     layers_.data(),
            count_of(layers_.size()), sizeof(sr_layer)};
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
  return axis_names_.emplace_back(std::move(names)).data();  // moving the outer vector leaves this where it is
}

}  // namespace shardrun::plugins
