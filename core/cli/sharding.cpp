#include "core/cli/sharding.h"

#include <fmt/format.h>

#include <shardrun/engine.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/suggest.h"
#include "core/device/choice.h"
#include "core/files/mapped_file.h"
#include "core/launch/world.h"
#include "core/metrics/run_files.h"
#include "core/metrics/summary.h"
#include <shardrun/sdk/strategy/glob.hpp>

namespace shardrun::cli {
namespace {

class Tensors {
 public:
  explicit Tensors(const compile::Compiled& compiled) : compiled_(compiled) {}

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const graph::State& state : compiled_.graph.states) {
      names.push_back(state.name);
    }
    for (const graph::CutPoint& point : compiled_.graph.cut_points) {
      names.push_back(point.name);
    }
    for (const partition::SplitFunction& function : compiled_.partition.sharded.functions) {
      for_each_port(function, [&](const graph::Port& port, const char*) {
        if (std::ranges::find(names, port.name) == names.end()) {
          names.push_back(port.name);
        }
      });
    }
    return names;
  }

  [[nodiscard]] PlacedTensor find(const std::string& name) const {
    const graph::StateId state = compiled_.graph.find_state(name);
    if (!state.exists()) {
      const auto& points = compiled_.graph.cut_points;
      return std::ranges::find(points, name, &graph::CutPoint::name) != points.end() ? of_cut_point(name)
                                                                                     : of_port(name);
    }
    PlacedTensor tensor = of_state(state);
    tensor.stages = compiled_.partition.stages.states.held[state];
    return tensor;
  }

 private:
  [[nodiscard]] PlacedTensor of_state(graph::StateId s) const {
    const graph::State& state = compiled_.graph.states[s];
    PlacedTensor tensor{.name = state.name, .kind = to_string(state.kind), .type = state.type};
    const partition::Placements& placements = compiled_.partition.placements;
    if (state.kind == graph::StateKind::gradient) {
      add_gradient(tensor, s);
      return tensor;
    }
    tensor.roles.push_back({"stored", placements.states[s]});
    if (state.kind == graph::StateKind::parameter) {
      tensor.roles.push_back({"used", placements.uses[s]});
      add_derived(tensor, s);
    }
    return tensor;
  }

  /// Adds two roles of a gradient: during a step, when calls add to it, and at the step's end,
  /// when the update reads it.
  void add_gradient(PlacedTensor& tensor, graph::StateId s) const {
    const partition::ShardedGraph& sharded = compiled_.partition.sharded;
    mesh::Placement accumulated = compiled_.partition.placements.states[s];
    accumulated.partial = sharded.partial[s];
    tensor.roles.push_back({"gradient", std::move(accumulated)});
    tensor.roles.push_back({"reduced", sharded.finalizations[s].after});
  }

  void add_derived(PlacedTensor& tensor, graph::StateId parameter) const {
    bool has_optimizer = false;
    for (const graph::StateId s : compiled_.graph.states.ids()) {
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

  template <typename Act>
  static void for_each_port(const partition::SplitFunction& function, const Act& act) {
    for (const partition::SplitInput& input : function.inputs) {
      act(input, "input");
    }
    for (const graph::Port& output : function.outputs) {
      act(output, "output");
    }
  }

  static std::string function_text(const partition::SplitFunction& function) {
    return function.rows == 0 ? function.name : fmt::format("{} of {} rows", function.name, function.rows);
  }

  /// The input or output with this name, of the first function that has one.
  [[nodiscard]] PlacedTensor of_port(const std::string& name) const {
    const partition::Pipeline& pipeline = compiled_.partition.pipeline;
    std::optional<PlacedTensor> tensor;
    for (const partition::SplitFunction& function : compiled_.partition.sharded.functions) {
      for_each_port(function, [&](const graph::Port& port, const char* what) {
        if (tensor || port.name != name) {
          return;
        }
        const partition::SplitValue& value = function.values[port.value];
        tensor = PlacedTensor{
            .name = name, .kind = fmt::format("{} of {}", what, function_text(function)), .type = value.type};
        tensor->roles.push_back({"placed", value.placement});
        tensor->stages.assign(pipeline.stages(), false);
        for (const partition::SplitNode& node : function.nodes) {
          if (std::ranges::find(node.inputs, port.value) != node.inputs.end() ||
              std::ranges::find(node.outputs, port.value) != node.outputs.end()) {
            tensor->stages[pipeline.exists() ? pipeline.stage_of(node.layer) : partition::StageId(0)] = true;
          }
        }
      });
    }
    return std::move(tensor).value();
  }

  /// A cut point. Its first role is the placement that the plan gives it or, without one, its computed placement.
  [[nodiscard]] PlacedTensor of_cut_point(const std::string& name) const {
    for (const partition::SplitFunction& function : compiled_.partition.sharded.functions) {
      if (function.role == graph::Role::on_demand) {
        continue;
      }
      for (const partition::SplitValue& value : function.values) {
        if (value.name != name) {
          continue;
        }
        PlacedTensor tensor{.name = name, .kind = "cut point in " + function_text(function), .type = value.type};
        const auto planned = compiled_.partition.placements.cut_points.find(name);
        if (planned != compiled_.partition.placements.cut_points.end()) {
          tensor.roles.push_back({"placed", planned->second});
        }
        tensor.roles.push_back({"made", value.placement});
        const partition::Pipeline& pipeline = compiled_.partition.pipeline;
        tensor.stages.assign(pipeline.stages(), false);
        const graph::Node& producer = function.nodes[value.producer];
        tensor.stages[pipeline.stage_of(producer.layer)] = true;
        return tensor;
      }
    }
    throw Error(ErrorCode::usage, fmt::format("{}: the job's steps have no such cut point", name));
  }

  const compile::Compiled& compiled_;
};

/// The places of ranks from a run's summary; empty if there is none.
std::vector<RankPlace> places_of_run(const std::filesystem::path& output) {
  constexpr std::size_t most_bytes = std::size_t{1} << 28U;
  std::vector<RankPlace> places;
  try {
    for (const metrics::RankSummary& rank :
         metrics::parse_summary(files::read_text_file(metrics::summary_path(output), most_bytes)).ranks) {
      places.push_back({rank.host, rank.device});
    }
  } catch (const Error&) {
    places.clear();  // the summary is missing or has another version
  }
  return places;
}

/// The device that local rank `local` of this machine would use.
std::string device_of(const job::Job& job, const device::Device& device, std::int64_t local, std::int64_t ranks) {
  try {
    if (device.has_units()) {
      const std::size_t number = device::unit_of(device, device::parse_device(job.device), local, ranks);
      const device::Unit unit = device.units().at(number);
      return fmt::format("{}:{} ({}, {})", device.name(), number, unit.name, unit.architecture);
    }
  } catch (const Error&) {
    // The job can be meant for another machine, so the device need not exist here.
  }
  return device.name();
}

std::vector<std::string> matching(const std::vector<std::string>& names, const std::string& wanted) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [&](const std::string& name) { return name == wanted || sdk::glob_matches(wanted, name); });
  if (found.empty()) {
    throw Error(
        ErrorCode::usage,
        fmt::format(
            "show-sharding: the job has no state, cut point, input or output '{}'{}; show-sharding JOB.ini '*' shows "
            "all, and a glob some",
            wanted, did_you_mean(wanted, names)));
  }
  return found;
}

/// The parameters or states that an engine's ranks declare.
std::vector<PlacedTensor> tensors_of(const compile::JobEngine& engine) {
  const graph::Graph whole = compile::whole_states(engine);
  std::vector<PlacedTensor> tensors;
  for (const graph::State& state : whole.states) {
    PlacedTensor tensor{.name = state.name,
                        .kind = engine.request.task == SR_ENGINE_ITERATE ? "state" : "parameter",
                        .type = state.type};
    for (std::size_t rank = 0; rank < engine.parameters.size(); ++rank) {
      const auto own = std::ranges::find(engine.parameters[rank], state.name, &plugins::EngineParameter::name);
      if (own == engine.parameters[rank].end()) {
        continue;
      }
      const std::vector<std::uint32_t> holders = engine.holders_of(*own);
      if (holders.front() == rank) {
        tensor.declared.push_back({{.origin = own->origin, .shape = own->shape}, {holders.begin(), holders.end()}});
      }
    }
    std::ranges::stable_sort(tensor.declared, {}, [](const mesh::Shard& shard) { return shard.box.origin; });
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

std::vector<PlacedTensor> find_tensors(const compile::Compiled& compiled, const std::string& wanted) {
  if (compiled.engine != nullptr) {
    std::vector<PlacedTensor> tensors = tensors_of(*compiled.engine);
    std::vector<std::string> names;
    std::ranges::transform(tensors, std::back_inserter(names), &PlacedTensor::name);
    const std::vector<std::string> found = matching(names, wanted);
    std::erase_if(tensors,
                  [&](const PlacedTensor& each) { return std::ranges::find(found, each.name) == found.end(); });
    return tensors;
  }
  const Tensors known(compiled);
  std::vector<PlacedTensor> tensors;
  for (const std::string& name : matching(known.names(), wanted)) {
    tensors.push_back(known.find(name));
  }
  return tensors;
}

std::vector<PlacedTensor> all_states(const compile::Compiled& compiled) {
  if (compiled.engine != nullptr) {
    return tensors_of(*compiled.engine);
  }
  const Tensors known(compiled);
  std::vector<PlacedTensor> tensors;
  for (const graph::State& state : compiled.graph.states) {
    tensors.push_back(known.find(state.name));
  }
  return tensors;
}

std::vector<RankPlace> places_of(const job::Job& job, const compile::Compiled& compiled) {
  if (std::vector<RankPlace> places = places_of_run(job.output); std::cmp_equal(places.size(), job.ranks)) {
    return places;
  }
  std::vector<RankPlace> places(static_cast<std::size_t>(job.ranks));
  std::int64_t first = 0;
  std::int64_t count = job.cluster.ranks_per_machine > 0 ? job.cluster.ranks_per_machine : job.ranks;
  if (const std::optional<launch::World> world = launch::world_of(); world && world->size == job.ranks) {
    first = world->rank - world->local_rank.value_or(0);
    count = world->local_size.value_or(1);
  }
  for (std::int64_t local = 0; local < count && first + local < job.ranks; ++local) {
    places[static_cast<std::size_t>(first + local)] = {host_name(), device_of(job, *compiled.device, local, count)};
  }
  for (RankPlace& place : places) {
    place.device = place.device.empty() ? compiled.device->name() : place.device;
  }
  return places;
}

std::vector<mesh::Shard> shards_of(const PlacedTensor& tensor, const compile::Compiled& compiled) {
  if (compiled.engine != nullptr) {
    return tensor.declared;
  }
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  std::vector<mesh::Shard> shards = mesh::shards_of(tensor.type.shape, tensor.roles.front().placement, mesh);
  for (mesh::Shard& shard : shards) {
    std::erase_if(shard.ranks, [&](std::int64_t rank) {
      return !tensor.stages[compiled.partition.stage_at(mesh::coordinates_of(mesh, rank))];
    });
  }
  return shards;
}

}  // namespace shardrun::cli
