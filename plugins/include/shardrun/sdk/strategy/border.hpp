#pragma once

/// Converts jobs and graphs to and from their C form.

#include <shardrun/sdk/plugin.hpp>
#include <shardrun/sdk/strategy/plan.hpp>
#include <shardrun/strategy.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace shardrun::sdk::detail {

[[nodiscard]] inline std::vector<std::string> texts(const char* const* array, std::uint32_t count) {
  return {array, array + count};
}

[[nodiscard]] inline std::vector<std::int64_t> numbers(const std::int64_t* array, std::uint32_t count) {
  return {array, array + count};
}

[[nodiscard]] inline std::uint32_t count_of(std::size_t size) noexcept { return static_cast<std::uint32_t>(size); }

[[nodiscard]] inline Job read(const sr_job& raw) {
  Job job;
  job.ranks = raw.ranks;
  for_each(raw.mesh, raw.mesh_count, raw.mesh_stride, [&](const sr_mesh_axis& axis) {
    job.mesh.push_back({axis.name, axis.size});
  });
  job.options = OptionValues(raw.options, raw.option_count, raw.option_stride);
  job.microbatches = SR_HAS(&raw, sr_job, microbatches) ? raw.microbatches : 1;
  if (SR_HAS(&raw, sr_job, sharding_stride)) {
    for_each(raw.sharding, raw.sharding_count, raw.sharding_stride, [&](const sr_sharding& line) {
      job.sharding.push_back({line.key, line.value, line.where});
    });
  }
  return job;
}

/// A job in its C form. It points into `job` and its `options`, which must outlive it.
class WrittenJob {
 public:
  WrittenJob(const Job& job, const RawOptions& options) {
    for (const MeshAxis& axis : job.mesh) {
      mesh_.push_back({sizeof(sr_mesh_axis), axis.size, axis.name.c_str()});
    }
    for (const Sharding& line : job.sharding) {
      sharding_.push_back({sizeof(sr_sharding), 0, line.key.c_str(), line.value.c_str(), line.where.c_str()});
    }
    raw_ = {sizeof(sr_job),       job.ranks,
            mesh_.data(),         count_of(mesh_.size()),
            sizeof(sr_mesh_axis), options.data,
            options.count,        options.stride,
            job.microbatches,     0,
            sharding_.data(),     count_of(sharding_.size()),
            sizeof(sr_sharding)};
  }
  WrittenJob(const WrittenJob&) = delete;
  WrittenJob& operator=(const WrittenJob&) = delete;

  [[nodiscard]] const sr_job& raw() const noexcept { return raw_; }

 private:
  std::vector<sr_mesh_axis> mesh_;
  std::vector<sr_sharding> sharding_;
  sr_job raw_{};
};

[[nodiscard]] inline Layer read(const sr_layer& raw) {
  return {raw.name,
          raw.parameter_bytes,
          raw.forward_flops,
          raw.backward_input_flops,
          raw.backward_weight_flops,
          SR_HAS(&raw, sr_layer, seconds) ? raw.seconds : 0};
}

[[nodiscard]] inline sr_layer write(const Layer& layer) noexcept {
  return {sizeof(sr_layer),
          0,
          layer.name.c_str(),
          layer.parameter_bytes,
          layer.forward_flops,
          layer.backward_input_flops,
          layer.backward_weight_flops,
          layer.seconds};
}

[[nodiscard]] inline Graph read(const sr_graph& raw) {
  Graph graph;
  for_each(raw.tensors, raw.tensor_count, raw.tensor_stride, [&](const sr_tensor& tensor) {
    graph.tensors.push_back({tensor.kind, tensor.name, numbers(tensor.shape, tensor.rank),
                             texts(tensor.axes, tensor.rank), tensor.bytes, tensor.layer, tensor.tied_set});
  });
  for_each(raw.axes, raw.axis_count, raw.axis_stride, [&](const sr_axis& axis) {
    graph.axes.push_back({axis.name, axis.size});
  });
  for_each(raw.cut_points, raw.cut_point_count, raw.cut_point_stride, [&](const sr_cut_point& point) {
    graph.cut_points.push_back(
        {point.name, numbers(point.shape, point.rank), texts(point.axes, point.rank), point.bytes, point.layer});
  });
  for_each(raw.layers, raw.layer_count, raw.layer_stride,
           [&](const sr_layer& layer) { graph.layers.push_back(read(layer)); });
  if (SR_HAS(&raw, sr_graph, behind) && raw.before != nullptr && raw.behind != nullptr) {
    graph.before = read(*raw.before);
    graph.behind = read(*raw.behind);
  }
  return graph;
}

/// A graph in its C form. It points into `graph`, which must outlive it.
class WrittenGraph {
 public:
  /// Throws std::logic_error if a tensor or cut point does not have one axis per dimension.
  explicit WrittenGraph(const Graph& graph) : before_(write(graph.before)), behind_(write(graph.behind)) {
    for (const Tensor& tensor : graph.tensors) {
      tensors_.push_back({sizeof(sr_tensor), tensor.kind, tensor.name.c_str(), tensor.shape.data(), axes_of(tensor),
                          tensor.bytes, count_of(tensor.shape.size()), tensor.layer, tensor.tied_set, 0});
    }
    for (const Axis& axis : graph.axes) {
      axes_.push_back({sizeof(sr_axis), 0, axis.name.c_str(), axis.size});
    }
    for (const CutPoint& point : graph.cut_points) {
      cut_points_.push_back({sizeof(sr_cut_point), count_of(point.shape.size()), point.name.c_str(), point.shape.data(),
                             axes_of(point), point.bytes, point.layer, 0});
    }
    for (const Layer& layer : graph.layers) {
      layers_.push_back(write(layer));
    }
    raw_ = {sizeof(sr_graph),
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
  WrittenGraph(const WrittenGraph&) = delete;
  WrittenGraph& operator=(const WrittenGraph&) = delete;

  [[nodiscard]] const sr_graph& raw() const noexcept { return raw_; }

 private:
  template <class Item>
  const char* const* axes_of(const Item& item) {
    if (item.axes.size() != item.shape.size()) {
      throw std::logic_error("'" + item.name + "' has " + std::to_string(item.shape.size()) + " dimensions but " +
                             std::to_string(item.axes.size()) + " axis names");
    }
    return axis_names_.emplace_back(pointers(item.axes)).data();  // moving the outer vector does not move this
  }

  std::vector<sr_tensor> tensors_;
  std::vector<sr_axis> axes_;
  std::vector<sr_cut_point> cut_points_;
  std::vector<sr_layer> layers_;
  std::vector<std::vector<const char*>> axis_names_;
  sr_layer before_;
  sr_layer behind_;
  sr_graph raw_{};
};

}  // namespace shardrun::sdk::detail
