#include <shardrun/sdk/strategy.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "line.h"

using namespace shardrun::sdk;

namespace {

using named::did_you_mean;
using named::join;
using named::ParsedLine;
using named::refuse;

/// The job's [mesh]. Without it, the only mesh axis in the lines gets all ranks.
std::vector<MeshAxis> mesh_of(const Job& job, const std::vector<ParsedLine>& lines) {
  if (!job.mesh.empty()) {
    return job.mesh;
  }
  std::vector<MeshAxis> mesh;
  for (const ParsedLine& line : lines) {
    for (const auto& axes : line.dims) {
      for (const std::string& axis : axes) {
        const bool known =
            std::any_of(mesh.begin(), mesh.end(), [&](const MeshAxis& each) { return each.name == axis; });
        if (!known && !mesh.empty() && job.ranks > 1) {
          refuse(line, "there are two mesh axes, '" + mesh.front().name + "' and '" + axis +
                           "', and no [mesh] that says how many of the " + std::to_string(job.ranks) +
                           " ranks each has: write one");
        }
        if (!known) {
          mesh.push_back({axis, job.ranks});
        }
      }
    }
  }
  if (mesh.empty() && job.ranks > 1) {
    throw InvalidJob("nothing is split over the " + std::to_string(job.ranks) +
                     " ranks: write what over which mesh axis in [sharding], as in batch = data, or set ranks = 1");
  }
  return mesh;
}

/// Writes the lines of [sharding] into a plan.
class Placer {
 public:
  Placer(const Graph& graph, const std::vector<MeshAxis>& mesh, PlanWriter& plan) : graph_(graph), plan_(plan) {
    for (const MeshAxis& axis : mesh) {
      mesh_.push_back(axis.name);
      if (axis.size > 1) {
        splitting_.insert(axis.name);
      }
      plan.add_mesh_axis(axis.name, axis.size);
    }
  }

  void place(const ParsedLine& line) {
    for (const auto& axes : line.dims) {
      for (const std::string& axis : axes) {
        if (std::find(mesh_.begin(), mesh_.end(), axis) == mesh_.end()) {
          refuse(line, "the mesh has no axis '" + axis + "'" + did_you_mean(axis, mesh_) + "; it has " + join(mesh_));
        }
      }
    }
    if (!line.role && graph_.has_axis(line.key)) {
      place_axis(line);
      return;
    }
    const bool tensors = place_tensors(line);
    const bool points = !line.role && place_cut_points(line);
    if (!tensors && !points) {
      refuse(line, unknown(line));
    }
  }

  /// Refuses lines that give one mesh axis to two dimensions of a tensor: a mesh axis can split it only once.
  void require_effect(const std::vector<ParsedLine>& lines) const {
    for (const Tensor& tensor : graph_.tensors) {
      for (auto line = lines.begin(); line != lines.end() && !placed_.contains(tensor.name); ++line) {
        for (auto other = lines.begin(); other != line && has(tensor, *line); ++other) {
          const std::string shared = has(tensor, *other) && other->key != line->key ? common(*other, *line) : "";
          if (!shared.empty()) {
            refuse(*line, "mesh axis '" + shared + "' would split two dimensions of " + tensor.name + " [" +
                              join(tensor.axes) + "], this and " + other->key +
                              ": give one of them another mesh axis, or the tensor a line of its own");
          }
        }
      }
    }
  }

 private:
  /// Whether the line places an axis that the tensor has.
  static bool has(const Tensor& tensor, const ParsedLine& line) {
    return !line.role && line.dims.size() == 1 &&
           std::find(tensor.axes.begin(), tensor.axes.end(), line.key) != tensor.axes.end();
  }

  /// A mesh axis over which both lines split; empty if there is none.
  [[nodiscard]] std::string common(const ParsedLine& a, const ParsedLine& b) const {
    for (const std::string& axis : a.dims[0]) {
      if (splitting_.contains(axis) && std::find(b.dims[0].begin(), b.dims[0].end(), axis) != b.dims[0].end()) {
        return axis;
      }
    }
    return "";
  }

  void place_axis(const ParsedLine& line) {
    if (line.dims.size() != 1) {
      refuse(line, "it is an axis, and stands for one dimension, not " + std::to_string(line.dims.size()) +
                       ": leave the | out");
    }
    plan_.place_axis(line.key, line.dims[0]);
  }

  bool place_tensors(const ParsedLine& line) {
    bool any = false;
    for (const Tensor& tensor : graph_.tensors) {
      if (glob_matches(line.key, tensor.name)) {
        check_dims(line, tensor.name, tensor.axes);
        if (line.role && tensor.kind != SR_TENSOR_PARAMETER) {
          refuse(line, tensor.name + " is not trained, so it has no roles: leave what begins with @ out");
        }
        plan_.place_tensor(tensor.name, line.role.value_or(Role::store), splits(line));
        placed_.insert(tensor.name);
        any = true;
      }
    }
    return any;
  }

  bool place_cut_points(const ParsedLine& line) {
    bool any = false;
    for (const CutPoint& point : graph_.cut_points) {
      if (glob_matches(line.key, point.name)) {
        check_dims(line, point.name, point.axes);
        plan_.place_cut_point(point.name, splits(line));
        any = true;
      }
    }
    return any;
  }

  static void check_dims(const ParsedLine& line, const std::string& name, const std::vector<std::string>& axes) {
    if (axes.size() != line.dims.size()) {
      refuse(line, name + " has " + std::to_string(axes.size()) + " dimensions [" + join(axes) + "], and " +
                       std::to_string(line.dims.size()) +
                       " are given: write one for each, with | between them and - "
                       "for what stays whole");
    }
  }

  static std::vector<Split> splits(const ParsedLine& line) {
    std::vector<Split> splits;
    for (std::size_t d = 0; d < line.dims.size(); ++d) {
      splits.push_back(split_dim(static_cast<std::uint32_t>(d), line.dims[d]));
    }
    return splits;
  }

  /// The error for a key that names nothing.
  [[nodiscard]] std::string unknown(const ParsedLine& line) const {
    std::vector<std::string> axes;
    std::vector<std::string> all;
    for (const Axis& axis : graph_.axes) {
      axes.push_back(axis.name);
    }
    for (const Tensor& tensor : graph_.tensors) {
      all.push_back(tensor.name);
    }
    if (!line.role) {
      all.insert(all.begin(), axes.begin(), axes.end());
      for (const CutPoint& point : graph_.cut_points) {
        all.push_back(point.name);
      }
    }
    return std::string("the model has no ") + (line.role ? "tensor" : "axis, tensor or cut point") + " of that name" +
           did_you_mean(line.key, all) + "; its axes are " + join(axes) +
           ", and 'shardrun run JOB.ini --dump graph' shows its tensors";
  }

  const Graph& graph_;
  PlanWriter& plan_;
  std::vector<std::string> mesh_;
  std::set<std::string> splitting_;  ///< mesh axes with several ranks
  std::set<std::string> placed_;     ///< tensors that a line places by name
};

/// Places only the axes and tensors that the job file's [sharding] names (shardings by name: GSPMD, Xu et al. 2021,
/// arXiv:2105.04663).
class Named {
 public:
  static constexpr bool reads_sharding = true;

  static std::vector<Option> options() {
    return {number_option("bucket_mb", 4, 0, 1 << 20,
                          "MiB of gradients that are reduced at once; 0: each tensor by itself")};
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    std::vector<ParsedLine> lines;
    for (const Sharding& given : job.sharding) {
      lines.push_back(named::parse(given));
    }
    Placer placer(graph, mesh_of(job, lines), plan);
    for (const ParsedLine& line : lines) {
      placer.place(line);
    }
    placer.require_effect(lines);
    plan.set_bucket_bytes(static_cast<std::uint64_t>(job.options.number("bucket_mb") * (1 << 20)));
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Named, "named", "1.0", "auto manual gspmd pjit dtensor sharding custom")
