#pragma once

/// A job and a graph, which a strategy reads, and a plan, which it writes.

#include <shardrun/sdk/plugin.hpp>
#include <shardrun/sdk/strategy/hooks.hpp>
#include <shardrun/strategy.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::sdk {

/// The C++ form of sr_mesh_axis.
struct MeshAxis {
  std::string name;
  std::uint32_t size = 1;

  bool operator==(const MeshAxis&) const = default;
};

/// The C++ form of sr_sharding: a line of the section [sharding].
struct Sharding {
  std::string key;
  std::string value;
  std::string where;  ///< how a message about it begins

  bool operator==(const Sharding&) const = default;
};

/// The C++ form of sr_job.
struct Job {
  std::uint32_t ranks = 1;
  std::vector<MeshAxis> mesh;  ///< as in the job file; empty if it has none
  OptionValues options;
  std::uint32_t microbatches = 1;    ///< per optimizer step
  std::vector<Sharding> sharding{};  ///< in the order of the file
};

/// The name of the axis that splits all ranks in the job's mesh, or `otherwise` if the job has no mesh. Throws
/// InvalidJob if the mesh splits the ranks over several axes.
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

/// The C++ form of sr_axis.
struct Axis {
  std::string name;
  std::int64_t size = 0;

  bool operator==(const Axis&) const = default;
};

/// The C++ form of sr_tensor.
struct Tensor {
  std::uint32_t kind = 0;  ///< SR_TENSOR_...
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;  ///< one per dimension; "" for a dimension without one
  std::uint64_t bytes = 0;
  std::int32_t layer = -1;
  std::uint32_t tied_set = 0;

  bool operator==(const Tensor&) const = default;
};

/// The C++ form of sr_cut_point.
struct CutPoint {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;
  std::uint64_t bytes = 0;
  std::int32_t layer = -1;

  bool operator==(const CutPoint&) const = default;
};

/// The C++ form of sr_layer.
struct Layer {
  std::string name;
  std::uint64_t parameter_bytes = 0;
  std::uint64_t forward_flops = 0;
  std::uint64_t backward_input_flops = 0;
  std::uint64_t backward_weight_flops = 0;
  double seconds = 0;

  bool operator==(const Layer&) const = default;
};

/// The C++ form of sr_graph.
struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Axis> axes;
  std::vector<CutPoint> cut_points;
  std::vector<Layer> layers;
  Layer before;  ///< what comes before the first layer
  Layer behind;  ///< what comes after the last layer

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

/// Consecutive layers on one stage of a pipeline, up to the first layer of the next chunk.
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

/// Splits one dimension over mesh axes, major to minor. `axis` is the dimension's logical axis; if "", `dim` its index.
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

/// Splits the tensor's elements in row-major order. If other splits apply, too, it splits what they leave to a rank.
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

/// The C++ form of sr_plan_writer, whose rules apply. Every function throws Refused.
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

  /// Places the tensors that match `glob` in this role. Without splits, every rank has them whole.
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

  // The following throw Refused if the host is older than ABI 1.1.

  /// Gathers the parameters that match `glob` just before use, with all others of `unit` (if "": each separately).
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

}  // namespace shardrun::sdk
