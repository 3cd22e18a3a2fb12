#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/cli/options.h"
#include "core/forecast/forecast.h"
#include "core/mesh/draw.h"
#include "core/metrics/human.h"
#include "core/metrics/progress.h"
#include <shardrun/sdk/glob.hpp>

namespace shardrun::cli {
namespace {

namespace json = boost::json;

constexpr std::size_t usual_drawing_width = 80;
/// Of more ranks, those that have the same part share a line of the table.
constexpr std::int64_t most_ranks_by_line = 16;

/// Where a tensor is in one of its roles.
struct Role {
  std::string name;
  mesh::Placement placement;
};

/// A tensor of the job. Its first role is drawn.
struct Tensor {
  std::string name;
  std::string kind;
  graph::TensorType type;
  std::size_t element_bytes = 0;
  std::vector<Role> roles;
  std::vector<bool> stages = {};  ///< of a pipeline, whether it has the tensor
};

class Tensors {
 public:
  Tensors(const job::Job& job, const compile::Compiled& compiled) : job_(job), compiled_(compiled) {}

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const graph::State& state : compiled_.graph.states) {
      names.push_back(state.name);
    }
    for (const graph::CutPoint& point : compiled_.graph.cut_points) {
      names.push_back(point.name);
    }
    return names;
  }

  [[nodiscard]] Tensor find(const std::string& name) const {
    const graph::StateId state = compiled_.graph.find_state(name);
    if (state < 0) {
      return of_cut_point(name);
    }
    Tensor tensor = of_state(static_cast<std::size_t>(state));
    tensor.element_bytes = forecast::element_bytes(job_, compiled_, tensor.type.dtype,
                                                   compiled_.graph.states[static_cast<std::size_t>(state)].kind);
    tensor.stages = compiled_.partition.stages.states.held[static_cast<std::size_t>(state)];
    return tensor;
  }

 private:
  [[nodiscard]] Tensor of_state(std::size_t s) const {
    const graph::State& state = compiled_.graph.states[s];
    Tensor tensor{.name = state.name, .kind = to_string(state.kind), .type = state.type};
    const partition::Placements& placements = compiled_.partition.placements;
    if (state.kind == graph::StateKind::gradient) {
      add_gradient(tensor, s);
      return tensor;
    }
    tensor.roles.push_back({"stored", placements.states[s]});
    if (state.kind == graph::StateKind::parameter) {
      tensor.roles.push_back({"used", placements.uses[s]});
      add_derived(tensor, static_cast<graph::StateId>(s));
    }
    return tensor;
  }

  /// The gradient within a step, to which every call adds, and at its end, as it is read.
  void add_gradient(Tensor& tensor, std::size_t s) const {
    const partition::ShardedGraph& sharded = compiled_.partition.sharded;
    mesh::Placement accumulated = compiled_.partition.placements.states[s];
    accumulated.partial = sharded.partial[s];
    tensor.roles.push_back({"gradient", std::move(accumulated)});
    tensor.roles.push_back({"reduced", sharded.finalizations[s].after});
  }

  void add_derived(Tensor& tensor, graph::StateId parameter) const {
    bool has_optimizer = false;
    for (std::size_t s = 0; s < compiled_.graph.states.size(); ++s) {
      const graph::State& state = compiled_.graph.states[s];
      if (state.of_parameter != parameter) {
        continue;
      }
      if (state.kind == graph::StateKind::gradient) {
        add_gradient(tensor, s);
      } else if (!std::exchange(has_optimizer, true)) {
        tensor.roles.push_back({"optimizer", compiled_.partition.placements.states[s]});
      }
    }
  }

  /// As the plan places it, else as it is made.
  [[nodiscard]] Tensor of_cut_point(const std::string& name) const {
    for (const partition::SplitFunction& function : compiled_.partition.sharded.functions) {
      if (function.role == graph::Role::on_demand) {
        continue;
      }
      for (std::size_t v = 0; v < function.values.size(); ++v) {
        if (function.values[v].name != name) {
          continue;
        }
        Tensor tensor{.name = name,
                      .kind = function.rows == 0
                                  ? "cut point in " + function.name
                                  : fmt::format("cut point in {} of {} rows", function.name, function.rows),
                      .type = function.values[v].type};
        const auto planned = compiled_.partition.placements.cut_points.find(name);
        if (planned != compiled_.partition.placements.cut_points.end()) {
          tensor.roles.push_back({"placed", planned->second});
        }
        tensor.element_bytes = forecast::element_bytes(job_, compiled_, tensor.type.dtype, graph::StateKind::parameter);
        tensor.roles.push_back({"made", function.values[v].placement});
        const partition::Pipeline& pipeline = compiled_.partition.pipeline;
        tensor.stages.resize(static_cast<std::size_t>(pipeline.stages()), false);
        const graph::Node& producer = function.nodes[static_cast<std::size_t>(function.values[v].producer)];
        tensor.stages[static_cast<std::size_t>(pipeline.stage_of(producer.layer))] = true;
        return tensor;
      }
    }
    throw Error(ErrorCode::usage, fmt::format("{}: the job's steps have no such cut point", name));
  }

  const job::Job& job_;
  const compile::Compiled& compiled_;
};

std::vector<std::string> matching(const std::vector<std::string>& names, const std::string& wanted) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [&](const std::string& name) { return name == wanted || sdk::glob_matches(wanted, name); });
  if (found.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("show-sharding: the job has no state or cut point '{}'{}; show-sharding JOB.ini '*' shows "
                            "all, and a glob some",
                            wanted, did_you_mean(wanted, names)));
  }
  return found;
}

/// Of the table: a rank, or ranks that have the same.
struct Line {
  std::string ranks;
  std::string ranges;
  std::string shape;
  std::int64_t elements;
  std::uint64_t bytes;
};

/// The parts, with the ranks that have them.
std::vector<mesh::Shard> shards_of(const Tensor& tensor, const compile::Compiled& compiled) {
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  std::vector<mesh::Shard> shards = mesh::shards_of(tensor.type.shape, tensor.roles.front().placement, mesh);
  for (mesh::Shard& shard : shards) {
    std::erase_if(shard.ranks, [&](std::int64_t rank) {
      return !tensor.stages[static_cast<std::size_t>(compiled.partition.stage_at(mesh::coordinates_of(mesh, rank)))];
    });
  }
  return shards;
}

/// "stages 0, 3 of 4"; empty without a pipeline.
std::string stages_text(const Tensor& tensor) {
  std::vector<std::size_t> having;
  for (std::size_t stage = 0; stage < tensor.stages.size(); ++stage) {
    if (tensor.stages[stage]) {
      having.push_back(stage);
    }
  }
  return tensor.stages.size() == 1 ? ""
                                   : fmt::format("{} {} of {}\n", having.size() == 1 ? "stage    " : "stages   ",
                                                 fmt::join(having, ", "), tensor.stages.size());
}

std::vector<Line> lines_of(const std::vector<mesh::Shard>& shards, std::int64_t ranks, std::size_t element_bytes) {
  std::vector<std::pair<std::vector<std::int64_t>, const mesh::Box*>> rows;
  for (const mesh::Shard& shard : shards) {
    if (ranks > most_ranks_by_line) {
      rows.emplace_back(shard.ranks, &shard.box);
      continue;
    }
    for (const std::int64_t rank : shard.ranks) {
      rows.emplace_back(std::vector{rank}, &shard.box);
    }
  }
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Line> lines;
  for (const auto& [members, box] : rows) {
    lines.push_back({.ranks = mesh::ranks_text(members),
                     .ranges = mesh::ranges_text(*box),
                     .shape = fmt::format("[{}]", fmt::join(box->part_shape(), ", ")),
                     .elements = box->elements(),
                     .bytes = static_cast<std::uint64_t>(box->elements()) * element_bytes});
  }
  return lines;
}

std::string table(const std::vector<Line>& lines) {
  std::size_t ranks = 4;
  std::size_t ranges = 12;
  std::size_t shape = 5;
  for (const Line& line : lines) {
    ranks = std::max(ranks, line.ranks.size());
    ranges = std::max(ranges, line.ranges.size());
    shape = std::max(shape, line.shape.size());
  }
  std::string text = fmt::format("{:>{}}  {:<{}}  {:<{}}  {:>12}  {:>14}\n", "rank", ranks, "index ranges", ranges,
                                 "shape", shape, "elements", "bytes");
  for (const Line& line : lines) {
    text += fmt::format("{:>{}}  {:<{}}  {:<{}}  {:>12}  {:>14}\n", line.ranks, ranks, line.ranges, ranges, line.shape,
                        shape, line.elements, line.bytes);
  }
  return text;
}

/// A line for roles that are alike.
std::string roles_text(const Tensor& tensor, const mesh::Mesh& mesh) {
  std::vector<std::pair<std::string, std::string>> rows;  // placement, roles
  for (const Role& role : tensor.roles) {
    const std::string placement = to_string(role.placement, mesh);
    const auto alike = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.first == placement; });
    if (alike == rows.end()) {
      rows.emplace_back(placement, role.name);
    } else {
      alike->second += ", " + role.name;
    }
  }
  std::string text;
  for (const auto& [placement, roles] : rows) {
    text += rows.size() == 1 ? fmt::format("placement {}\n", placement)
                             : fmt::format("placement {}  {}\n", placement, roles);
  }
  return text;
}

std::string mesh_text(const mesh::Mesh& mesh) {
  std::vector<std::string> axes;
  for (const mesh::Axis& axis : mesh.axes) {
    axes.push_back(fmt::format("{} {}", axis.name, axis.size));
  }
  return fmt::format("{}{}{} {}", fmt::join(axes, " × "), axes.empty() ? "" : " = ", mesh.ranks(),
                     mesh.ranks() == 1 ? "rank" : "ranks");
}

std::string as_text(const Tensor& tensor, const compile::Compiled& compiled, std::size_t width) {
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  const auto bytes = static_cast<std::uint64_t>(graph::element_count(tensor.type)) * tensor.element_bytes;
  const bool is_as_run = tensor.element_bytes == compiled.device->element_bytes(tensor.type.dtype);
  const mesh::Placement& placement = tensor.roles.front().placement;
  const std::vector<mesh::Shard> shards = shards_of(tensor, compiled);
  std::string text =
      fmt::format("{}\n{} {}, {}{}\nmesh      {}\n{}{}", tensor.name, tensor.kind, graph::to_string(tensor.type),
                  is_as_run ? "" : fmt::format("{} bytes an element (precision = mixed), ", tensor.element_bytes),
                  metrics::human_bytes(bytes), mesh_text(mesh), stages_text(tensor), roles_text(tensor, mesh));
  if (!placement.partial.empty()) {
    text += "each rank has a part of the sum at every index that it has\n";
  }
  for (const mesh::AxisId axis : placement.varying) {
    text += fmt::format("each rank along {} has a value of its own\n", mesh.axes[axis].name);
  }
  return fmt::format("{}\n{}\n{}", text, mesh::draw(shards, tensor.type.axes, width),
                     table(lines_of(shards, mesh.ranks(), tensor.element_bytes)));
}

json::object json_of(const mesh::Placement& placement, const mesh::Mesh& mesh) {
  const auto name = [&](mesh::AxisId axis) { return json::string(mesh.axes[axis].name); };
  const auto names = [&](const std::vector<mesh::AxisId>& axes) {
    json::array array;
    for (const mesh::AxisId axis : axes) {
      array.push_back(name(axis));
    }
    return array;
  };
  json::array dims;
  for (const std::vector<mesh::AxisId>& axes : placement.dims) {
    dims.push_back(names(axes));
  }
  json::array partial;
  for (const mesh::Partial& each : placement.partial) {
    partial.push_back(json::object{{"axis", name(each.axis)}, {"reduction", to_string(each.reduction)}});
  }
  return {{"text", to_string(placement, mesh)},
          {"dims", std::move(dims)},
          {"flat", names(placement.flat)},
          {"partial", std::move(partial)},
          {"varying", names(placement.varying)}};
}

json::array json_of(const std::vector<mesh::Shard>& shards, std::int64_t ranks, std::size_t element_bytes) {
  json::array of_ranks(static_cast<std::size_t>(ranks));
  for (const mesh::Shard& shard : shards) {
    json::array ranges;
    for (std::size_t d = 0; d < shard.box.shape.size(); ++d) {
      const mesh::Interval interval = interval_along(shard.box, d);
      ranges.push_back(json::array{interval.begin, interval.end});
    }
    const std::vector<std::int64_t> shape = shard.box.part_shape();
    for (const std::int64_t rank : shard.ranks) {
      json::object part{{"rank", rank},
                        {"ranges", ranges},
                        {"shape", json::array(shape.begin(), shape.end())},
                        {"elements", shard.box.elements()},
                        {"bytes", static_cast<std::uint64_t>(shard.box.elements()) * element_bytes}};
      if (shard.box.run) {
        part["run"] = json::array{shard.box.run->begin, shard.box.run->end};
      }
      of_ranks[static_cast<std::size_t>(rank)] = std::move(part);
    }
  }
  of_ranks.erase(std::remove(of_ranks.begin(), of_ranks.end(), json::value()), of_ranks.end());
  return of_ranks;
}

json::object as_json(const Tensor& tensor, const compile::Compiled& compiled) {
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  json::object placements;
  for (const Role& role : tensor.roles) {
    placements[role.name] = json_of(role.placement, mesh);
  }
  return {{"name", tensor.name},
          {"kind", tensor.kind},
          {"dtype", to_string(tensor.type.dtype)},
          {"element_bytes", tensor.element_bytes},
          {"shape", json::array(tensor.type.shape.begin(), tensor.type.shape.end())},
          {"axes", json::array(tensor.type.axes.begin(), tensor.type.axes.end())},
          {"placements", std::move(placements)},
          {"ranks", json_of(shards_of(tensor, compiled), mesh.ranks(), tensor.element_bytes)}};
}

std::string as_json(const std::vector<Tensor>& tensors, const compile::Compiled& compiled) {
  json::array axes;
  for (const mesh::Axis& axis : compiled.partition.placements.mesh.axes) {
    axes.push_back(json::object{{"name", axis.name}, {"size", axis.size}});
  }
  json::array all;
  for (const Tensor& tensor : tensors) {
    all.push_back(as_json(tensor, compiled));
  }
  return json::serialize(json::object{{"mesh", std::move(axes)}, {"tensors", std::move(all)}}) + "\n";
}

std::size_t terminal_width() {
  const metrics::ProgressSink screen = metrics::descriptor_sink(STDOUT_FILENO, std::getenv("TERM"));
  return screen.is_terminal ? screen.width() : usual_drawing_width;
}

int show_sharding(std::span<const std::string> words) {
  const Parsed parsed = parse("show-sharding", words, {set_option(), {.name = "json", .help = "print JSON"}}, 2, 2);
  if (parsed.help_shown) {
    return 0;
  }
  const job::Job job = read_job(parsed);
  const compile::Compiled compiled = compile::compile(job);
  const Tensors known(job, compiled);
  std::vector<Tensor> tensors;
  for (const std::string& name : matching(known.names(), parsed.positional[1])) {
    tensors.push_back(known.find(name));
  }
  if (parsed.has("json")) {
    fmt::print("{}", as_json(tensors, compiled));
    return 0;
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    fmt::print("{}{}", t == 0 ? "" : "\n", as_text(tensors[t], compiled, terminal_width()));
  }
  return 0;
}

const RegisterCommand show_sharding_command(
    {.name = "show-sharding",
     .arguments = "JOB.ini TENSOR",
     .help = "who has which part of a parameter, gradient, moment, field or cut point; globs",
     .run = show_sharding});

}  // namespace
}  // namespace shardrun::cli
