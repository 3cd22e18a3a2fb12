#pragma once

/// A strategy as a small C++ class:
///
///     class Rows {
///      public:
///       static std::vector<shardrun::sdk::Option> options();  // may be left out
///       void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const;
///     };
///     SHARDRUN_EXPORT_STRATEGY(Rows, "rows", "1.0")
///
/// A class does itself what a plan cannot express: shardrun/sdk/hooks.hpp. A class that reads the job's section
/// [sharding] declares `static constexpr bool reads_sharding = true;`. The class is constructed without arguments or
/// from a Host. make_plan is pure and deterministic (see shardrun/strategy.h). What it throws becomes the job's error:
/// InvalidJob where the job has to change.

#include <shardrun/sdk/glob.hpp>
#include <shardrun/sdk/hooks.hpp>
#include <shardrun/sdk/plugin.hpp>
#include <shardrun/strategy.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::sdk {

/// sr_mesh_axis.
struct MeshAxis {
  std::string name;
  std::uint32_t size = 1;

  bool operator==(const MeshAxis&) const = default;
};

/// sr_sharding: a line of the section [sharding].
struct Sharding {
  std::string key;
  std::string value;
  std::string where;  ///< prefix of a message about it

  bool operator==(const Sharding&) const = default;
};

/// sr_job.
struct Job {
  std::uint32_t ranks = 1;
  std::vector<MeshAxis> mesh;  ///< as the job file gives it; empty where it does not
  OptionValues options;
  std::uint32_t microbatches = 1;    ///< in an optimizer step
  std::vector<Sharding> sharding{};  ///< in the order of the file
};

/// The only axis that splits the ranks: its name in the job's mesh, or `otherwise` without one. Throws InvalidJob where
/// the mesh has several.
[[nodiscard]] inline std::string only_mesh_axis(const Job& job, std::string otherwise) {
  std::string name = std::move(otherwise);
  for (const MeshAxis& axis : job.mesh) {
    if (axis.size == job.ranks) {
      name = axis.name;
    } else if (axis.size != 1) {
      throw InvalidJob("it has one mesh axis, but [mesh] splits the ranks over several (" + axis.name + " = " +
                       std::to_string(axis.size) + "): give one axis all " + std::to_string(job.ranks) +
                       " ranks, or leave [mesh] out");
    }
  }
  return name;
}

/// sr_axis.
struct Axis {
  std::string name;
  std::int64_t size = 0;

  bool operator==(const Axis&) const = default;
};

/// sr_tensor.
struct Tensor {
  std::uint32_t kind = 0;  ///< SR_TENSOR_...
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;  ///< one per dimension; "" where it has none
  std::uint64_t bytes = 0;
  std::int32_t layer = -1;
  std::uint32_t tied_set = 0;

  bool operator==(const Tensor&) const = default;
};

/// sr_cut_point.
struct CutPoint {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;
  std::uint64_t bytes = 0;
  std::int32_t layer = -1;

  bool operator==(const CutPoint&) const = default;
};

/// sr_layer.
struct Layer {
  std::string name;
  std::uint64_t parameter_bytes = 0;
  std::uint64_t forward_flops = 0;
  std::uint64_t backward_input_flops = 0;
  std::uint64_t backward_weight_flops = 0;

  bool operator==(const Layer&) const = default;
};

/// sr_graph.
struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Axis> axes;
  std::vector<CutPoint> cut_points;
  std::vector<Layer> layers;
  Layer before;  ///< what comes before the first layer
  Layer behind;  ///< what comes behind the last

  [[nodiscard]] bool has_axis(std::string_view name) const {
    for (const Axis& axis : axes) {
      if (axis.name == name) {
        return true;
      }
    }
    return false;
  }

  bool operator==(const Graph&) const = default;
};

/// Consecutive layers on one stage of a pipeline, up to the next chunk's first.
struct Chunk {
  std::uint32_t first_layer = 0;
  std::uint32_t stage = 0;
};

struct Action {
  enum class Kind : std::uint32_t {
    forward = SR_ACTION_FORWARD,
    backward = SR_ACTION_BACKWARD,
    backward_input = SR_ACTION_BACKWARD_INPUT,
    backward_weight = SR_ACTION_BACKWARD_WEIGHT,
  } kind = Kind::forward;
  std::uint32_t chunk = 0;
  std::uint32_t microbatch = 0;

  bool operator==(const Action&) const = default;
};

enum class Role : std::uint32_t {
  store = SR_ROLE_STORE,
  use = SR_ROLE_USE,
  gradient = SR_ROLE_GRADIENT,
  optimizer = SR_ROLE_OPTIMIZER,
};

/// One dimension, by its logical axis or (where that is "") by its index, split over mesh axes, major to minor.
struct Split {
  std::string axis;
  std::uint32_t dim = 0;
  std::vector<std::string> mesh_axes;
};

[[nodiscard]] inline Split split_axis(std::string axis, std::vector<std::string> mesh_axes) {
  return {std::move(axis), 0, std::move(mesh_axes)};
}

[[nodiscard]] inline Split split_dim(std::uint32_t dim, std::vector<std::string> mesh_axes) {
  return {{}, dim, std::move(mesh_axes)};
}

/// Splits the tensor's elements in row-major order; of those that other splits leave to a rank.
[[nodiscard]] inline Split split_flat(std::vector<std::string> mesh_axes) {
  return {{}, SR_DIM_FLAT, std::move(mesh_axes)};
}

namespace detail {

[[nodiscard]] inline std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(text.c_str());
  }
  return pointers;
}

}  // namespace detail

/// Wraps sr_plan_writer, whose rules apply. Every function throws Refused.
class PlanWriter {
 public:
  explicit PlanWriter(const sr_plan_writer& writer) : writer_(writer) {}

  void add_mesh_axis(const std::string& name, std::uint32_t size) {
    detail::call_host([&](sr_error* error) { return writer_.add_mesh_axis(writer_.self, name.c_str(), size, error); });
  }

  void place_axis(const std::string& axis, const std::vector<std::string>& mesh_axes) {
    const std::vector<const char*> names = detail::pointers(mesh_axes);
    detail::call_host([&](sr_error* error) {
      return writer_.place_axis(writer_.self, axis.c_str(), names.data(), static_cast<std::uint32_t>(names.size()),
                                error);
    });
  }

  /// Without splits the tensors are whole on every rank in this role.
  void place_tensor(const std::string& glob, Role role, const std::vector<Split>& splits) {
    const RawSplits raw(splits);
    detail::call_host([&](sr_error* error) {
      return writer_.place_tensor(writer_.self, glob.c_str(), static_cast<std::uint32_t>(role), raw.splits.data(),
                                  static_cast<std::uint32_t>(raw.splits.size()), sizeof(sr_split), error);
    });
  }

  void place_cut_point(const std::string& glob, const std::vector<Split>& splits) {
    const RawSplits raw(splits);
    detail::call_host([&](sr_error* error) {
      return writer_.place_cut_point(writer_.self, glob.c_str(), raw.splits.data(),
                                     static_cast<std::uint32_t>(raw.splits.size()), sizeof(sr_split), error);
    });
  }

  void set_bucket_bytes(std::uint64_t bytes) {
    detail::call_host([&](sr_error* error) { return writer_.set_bucket_bytes(writer_.self, bytes, error); });
  }

  // The following throw Refused where the host is older than 1.1.

  /// An empty unit: each tensor by itself.
  void gather_at_use(const std::string& glob, const std::string& unit, bool keep = false) {
    require_host(SR_HAS(&writer_, sr_plan_writer, gather_at_use), "gather tensors at use");
    detail::call_host([&](sr_error* error) {
      return writer_.gather_at_use(writer_.self, glob.c_str(), unit.empty() ? nullptr : unit.c_str(), keep ? 1 : 0,
                                   error);
    });
  }

  void place_layers(const std::string& mesh_axis, const std::vector<Chunk>& chunks) {
    require_host(SR_HAS(&writer_, sr_plan_writer, place_layers), "run pipelines");
    std::vector<sr_chunk> raw;
    for (const Chunk& chunk : chunks) {
      raw.push_back({sizeof(sr_chunk), chunk.first_layer, chunk.stage, 0});
    }
    detail::call_host([&](sr_error* error) {
      return writer_.place_layers(writer_.self, mesh_axis.c_str(), raw.data(), static_cast<std::uint32_t>(raw.size()),
                                  sizeof(sr_chunk), error);
    });
  }

  void set_actions(std::uint32_t stage, const std::vector<Action>& actions) {
    require_host(SR_HAS(&writer_, sr_plan_writer, set_actions), "run pipelines");
    std::vector<sr_action> raw;
    for (const Action& action : actions) {
      raw.push_back({sizeof(sr_action), static_cast<std::uint32_t>(action.kind), action.chunk, action.microbatch});
    }
    detail::call_host([&](sr_error* error) {
      return writer_.set_actions(writer_.self, stage, raw.data(), static_cast<std::uint32_t>(raw.size()),
                                 sizeof(sr_action), error);
    });
  }

  void sync_gradients(const std::string& glob, const std::string& mesh_axis) {
    require_host(SR_HAS(&writer_, sr_plan_writer, sync_gradients), "call a strategy's hooks");
    detail::call_host(
        [&](sr_error* error) { return writer_.sync_gradients(writer_.self, glob.c_str(), mesh_axis.c_str(), error); });
  }

  void after_step(const std::string& glob, const std::string& mesh_axis, std::uint32_t every) {
    require_host(SR_HAS(&writer_, sr_plan_writer, after_step), "call a strategy's hooks");
    detail::call_host([&](sr_error* error) {
      return writer_.after_step(writer_.self, glob.c_str(), mesh_axis.c_str(), every, error);
    });
  }

  void add_hook_state(Hook hook, const std::string& name, Begins begins = Begins::zero) {
    require_host(SR_HAS(&writer_, sr_plan_writer, add_hook_state), "call a strategy's hooks");
    detail::call_host([&](sr_error* error) {
      return writer_.add_hook_state(writer_.self, static_cast<std::uint32_t>(hook), name.c_str(),
                                    static_cast<std::uint32_t>(begins), error);
    });
  }

  void vary(const std::string& glob, const std::string& mesh_axis) {
    require_host(SR_HAS(&writer_, sr_plan_writer, vary), "let tensors vary");
    detail::call_host(
        [&](sr_error* error) { return writer_.vary(writer_.self, glob.c_str(), mesh_axis.c_str(), error); });
  }

 private:
  static void require_host(bool has, const char* what) {
    if (!has) {
      throw Refused(std::string("this shardrun is too old to ") + what + ": it needs ABI 1.1");
    }
  }

  struct RawSplits {
    explicit RawSplits(const std::vector<Split>& from) {
      names.reserve(from.size());
      for (const Split& split : from) {
        const std::vector<const char*>& mesh_axes = names.emplace_back(detail::pointers(split.mesh_axes));
        splits.push_back({sizeof(sr_split), split.dim, split.axis.empty() ? nullptr : split.axis.c_str(),
                          mesh_axes.data(), static_cast<std::uint32_t>(mesh_axes.size()), 0});
      }
    }

    std::vector<std::vector<const char*>> names;
    std::vector<sr_split> splits;
  };

  const sr_plan_writer& writer_;
};

namespace detail {

template <class Class>
concept StrategyClass = requires(const Class& strategy, const Job& job, const Graph& graph, PlanWriter& plan) {
  strategy.make_plan(job, graph, plan);
};

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

/// A job in its C form. It points into `job` and into its `options`, which outlive it.
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
  return {raw.name, raw.parameter_bytes, raw.forward_flops, raw.backward_input_flops, raw.backward_weight_flops};
}

[[nodiscard]] inline sr_layer write(const Layer& layer) noexcept {
  return {sizeof(sr_layer),           0,
          layer.name.c_str(),         layer.parameter_bytes,
          layer.forward_flops,        layer.backward_input_flops,
          layer.backward_weight_flops};
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

/// A graph in its C form. It points into `graph`, which outlives it.
class WrittenGraph {
 public:
  /// Throws std::logic_error for a tensor or cut point that does not have one axis per dimension.
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

template <class Class>
[[nodiscard]] constexpr std::uint32_t strategy_flags() noexcept {
  if constexpr (requires { Class::reads_sharding; }) {
    return Class::reads_sharding ? SR_STRATEGY_READS_SHARDING : 0;
  } else {
    return 0;
  }
}

template <StrategyClass Class>
std::int32_t make_plan(void* self, const sr_job* job, const sr_graph* graph, const sr_plan_writer* writer,
                       sr_error* error) noexcept {
  return guarded(error, [&] {
    PlanWriter plan(*writer);
    Instance<Class>::object(self).make_plan(read(*job), read(*graph), plan);
  });
}

using PlanHookFunction = std::int32_t (*)(void* self, const sr_job* job, const sr_hook_group* group,
                                          const sr_hook_writer* writer, sr_error* error);

/// Null for a class without hooks.
template <class Class>
[[nodiscard]] constexpr PlanHookFunction plan_hook_of() noexcept {
  if constexpr (requires(const Class& strategy, const Job& job, const HookGroup& group, HookWriter& writer) {
                  strategy.plan_hook(job, group, writer);
                }) {
    return [](void* self, const sr_job* job, const sr_hook_group* raw, const sr_hook_writer* writer, sr_error* error) {
      return guarded(error, [&] {
        const HookGroup group = read(*raw);
        HookWriter to(*writer, group);
        Instance<Class>::object(self).plan_hook(read(*job), group, to);
      });
    };
  } else {
    return nullptr;
  }
}

}  // namespace detail

}  // namespace shardrun::sdk

/// Exports `Class` as the plugin `plugin_name`. Use it once, at namespace scope. The file is shardrun_strategy_NAME.so.
/// A fourth argument lists its names in other programs, separated by spaces, as in sr_manifest.
#define SHARDRUN_EXPORT_STRATEGY(Class, plugin_name, plugin_version, ...)                                           \
  const sr_manifest shardrun_manifest_v1 = {sizeof(sr_manifest), SR_MAGIC,    SR_ABI_MAJOR,   SR_ABI_MINOR,  0,     \
                                            SR_KIND_STRATEGY,    plugin_name, plugin_version, "" __VA_ARGS__};      \
  static const sr_strategy shardrun_strategy_functions = {sizeof(sr_strategy),                                      \
                                                          0,                                                        \
                                                          shardrun::sdk::detail::make_plan<Class>,                  \
                                                          shardrun::sdk::detail::strategy_flags<Class>(),           \
                                                          0,                                                        \
                                                          shardrun::sdk::detail::plan_hook_of<Class>(),             \
                                                          shardrun::sdk::detail::sync_gradients_of<Class>(),        \
                                                          shardrun::sdk::detail::after_step_of<Class>()};           \
  int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {                              \
    return shardrun::sdk::detail::open_instance<Class>(host, SR_KIND_STRATEGY, &shardrun_strategy_functions, error, \
                                                       plugin);                                                     \
  }
