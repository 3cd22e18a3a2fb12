#include <shardrun/sdk/strategy.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "names.h"

using namespace shardrun::sdk;

namespace {

using named::did_you_mean;
using named::join;
using Dims = std::vector<std::vector<std::string>>;

struct RoleName {
  const char* name;
  Role role;
};
constexpr RoleName roles[] = {
    {"store", Role::store}, {"use", Role::use}, {"gradient", Role::gradient}, {"optimizer", Role::optimizer}};

/// One line of [sharding]: `key = value` or `key @role = value`, the value `a,b | - | c`.
struct Line {
  std::string key;
  std::optional<Role> role;
  Dims dims;  ///< of each the mesh axes, major to minor
  std::string where;
};

[[noreturn]] void refuse(const Line& line, const std::string& why) {
  throw InvalidJob(line.where + ": [sharding] " + line.key + ": " + why);
}

Role role_named(const Line& line, const std::string& name) {
  std::vector<std::string> known;
  for (const RoleName& each : roles) {
    if (each.name == name) {
      return each.role;
    }
    known.emplace_back(each.name);
  }
  refuse(line, "there is no role '" + name + "'" + did_you_mean(name, known) + "; the roles are " + join(known));
}

std::vector<std::string> mesh_axes_of(const Line& line, const std::string& text) {
  if (text == "-") {
    return {};
  }
  std::vector<std::string> axes = named::split(text, ',');
  if (std::find_if(axes.begin(), axes.end(), [](const auto& axis) { return axis.empty() || axis == "-"; }) !=
      axes.end()) {
    refuse(line, "'" + text +
                     "' names no mesh axis where one is expected: write names with a comma between them, or - "
                     "for a dimension that stays whole");
  }
  return axes;
}

Line parse(const Sharding& given) {
  Line line{.key = given.key, .where = given.where};
  const std::size_t at = given.key.find('@');
  if (at != std::string::npos) {
    line.key = named::trimmed(std::string_view(given.key).substr(0, at));
    line.role = role_named(line, std::string(named::trimmed(std::string_view(given.key).substr(at + 1))));
  }
  std::set<std::string> seen;
  for (const std::string& dim : named::split(given.value, '|')) {
    line.dims.push_back(mesh_axes_of(line, dim));
    for (const std::string& axis : line.dims.back()) {
      if (!seen.insert(axis).second) {
        refuse(line, "mesh axis '" + axis + "' stands there twice, and it can split a tensor once: leave one out");
      }
    }
  }
  return line;
}

/// As [mesh] gives it. Where there is none the only mesh axis that is mentioned has all ranks.
std::vector<MeshAxis> mesh_of(const Job& job, const std::vector<Line>& lines) {
  if (!job.mesh.empty()) {
    return job.mesh;
  }
  std::vector<MeshAxis> mesh;
  for (const Line& line : lines) {
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

/// Writes lines into a plan.
class Placer {
 public:
  Placer(const Graph& graph, const std::vector<MeshAxis>& mesh, PlanWriter& plan) : graph_(graph), plan_(plan) {
    for (const MeshAxis& axis : mesh) {
      mesh_.push_back(axis.name);
      plan.add_mesh_axis(axis.name, axis.size);
    }
  }

  void place(const Line& line) {
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

 private:
  void place_axis(const Line& line) {
    if (line.dims.size() != 1) {
      refuse(line, "it is an axis, and stands for one dimension, not " + std::to_string(line.dims.size()) +
                       ": leave the | out");
    }
    plan_.place_axis(line.key, line.dims[0]);
  }

  bool place_tensors(const Line& line) {
    bool any = false;
    for (const Tensor& tensor : graph_.tensors) {
      if (glob_matches(line.key, tensor.name)) {
        check_dims(line, tensor.name, tensor.axes);
        if (line.role && tensor.kind != SR_TENSOR_PARAMETER) {
          refuse(line, tensor.name + " is not trained, so it has no roles: leave what begins with @ out");
        }
        plan_.place_tensor(tensor.name, line.role.value_or(Role::store), splits(line));
        any = true;
      }
    }
    return any;
  }

  bool place_cut_points(const Line& line) {
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

  static void check_dims(const Line& line, const std::string& name, const std::vector<std::string>& axes) {
    if (axes.size() != line.dims.size()) {
      refuse(line, name + " has " + std::to_string(axes.size()) + " dimensions [" + join(axes) + "], and " +
                       std::to_string(line.dims.size()) +
                       " are given: write one for each, with | between them and - "
                       "for what stays whole");
    }
  }

  static std::vector<Split> splits(const Line& line) {
    std::vector<Split> splits;
    for (std::size_t d = 0; d < line.dims.size(); ++d) {
      splits.push_back(split_dim(static_cast<std::uint32_t>(d), line.dims[d]));
    }
    return splits;
  }

  /// What is wrong with a key that is nothing's name.
  [[nodiscard]] std::string unknown(const Line& line) const {
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
};

/// What the job file says, by the names of axes and tensors, and nothing else (the shardings by name of GSPMD, Xu et
/// al. 2021, arXiv:2105.04663).
class Named {
 public:
  static constexpr bool reads_sharding = true;

  static std::vector<Option> options() {
    return {number_option("bucket_mb", 4, 0, 1 << 20,
                          "MiB of gradients that are reduced at once; 0: each tensor by itself")};
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    std::vector<Line> lines;
    for (const Sharding& given : job.sharding) {
      lines.push_back(parse(given));
    }
    Placer placer(graph, mesh_of(job, lines), plan);
    for (const Line& line : lines) {
      placer.place(line);
    }
    plan.set_bucket_bytes(static_cast<std::uint64_t>(job.options.number("bucket_mb") * (1 << 20)));
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(Named, "named", "1.0")
