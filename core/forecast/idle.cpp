#include "core/forecast/idle.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/base/human.h"
#include "core/mesh/shards.h"
#include "core/workload/program.h"

namespace shardrun::forecast {
namespace {

/// A rank is idle if it has less than 1 / idle_share of the busiest rank's FLOPs.
constexpr std::int64_t idle_share = 10;

using Axes = std::vector<mesh::AxisId>;

/// A dimension with fewer indices than the number of parts that it is split into.
struct ShortDimension {
  std::string name;  ///< name of the axis in the graph
  Axes axes;
  std::int64_t size = 0;
  bool is_rows = false;  ///< whether the dimension is the rows of a microbatch
};

std::int64_t parts_of(const mesh::Mesh& mesh, const Axes& axes) {
  std::int64_t parts = 1;
  for (const mesh::AxisId axis : axes) {
    parts *= mesh.size(axis);
  }
  return parts;
}

/// The names of mesh axes: "data", or "copies × parts".
std::string names_of(const mesh::Mesh& mesh, const Axes& axes) {
  std::vector<std::string> names;
  for (const mesh::AxisId axis : axes) {
    names.push_back(mesh.axes[axis].name);
  }
  return fmt::format("{}", fmt::join(names, " × "));
}

/// The short dimensions of values that are computed for each microbatch of a step, in an iteration, or for a batch.
std::vector<ShortDimension> short_dimensions(const compile::Compiled& compiled) {
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  std::map<std::pair<std::string, Axes>, ShortDimension> found;
  const graph::Role role = compiled.microbatch_rows.empty() ? graph::Role::once : graph::Role::repeated;
  for (const partition::SplitFunction& function : compiled.partition.sharded.functions) {
    const bool is_applied = function.name == workload::forward_function || function.name == workload::decode_function;
    const bool is_batch = is_applied && function.rows == compiled.evaluation_rows.front();
    if (function.role != role && !is_batch) {
      continue;
    }
    const graph::Port* const input = function.inputs.empty() ? nullptr : &function.inputs.front();
    const std::vector<std::string> none;
    const std::vector<std::string>& input_axes = input == nullptr ? none : function.values[input->value].type.axes;
    for (const partition::SplitValue& value : function.values) {
      const graph::TensorType& type = value.type;
      for (std::size_t d = 0; d < type.shape.size(); ++d) {
        const Axes& axes = value.placement.dims[d];
        if (axes.empty() || type.shape[d] >= parts_of(mesh, axes) || value.placement.halo(d) != nullptr) {
          continue;
        }
        const std::string name = d < type.axes.size() ? type.axes[d] : "";
        ShortDimension& dimension = found[{name, axes}];
        dimension.is_rows = function.rows > 0 && !input_axes.empty() && name == input_axes.front();
        dimension.size = std::max(dimension.size, type.shape[d]);
        dimension.name = name;
        dimension.axes = axes;
      }
    }
  }
  std::vector<ShortDimension> dimensions;
  for (auto& [key, dimension] : found) {
    dimensions.push_back(std::move(dimension));
  }
  return dimensions;
}

/// The number of these ranks that have no index of the dimension.
std::size_t explained(const ShortDimension& dimension, const std::vector<std::int64_t>& ranks, const mesh::Mesh& mesh) {
  return static_cast<std::size_t>(std::ranges::count_if(ranks, [&](std::int64_t rank) {
    return mesh::shard_of(dimension.size, dimension.axes, mesh, mesh::coordinates_of(mesh, rank)).size() == 0;
  }));
}

/// The smallest work of any of these ranks, as a share of the work of the busiest rank of its stage.
double least_work_share(const Forecast& forecast, const std::vector<std::int64_t>& ranks) {
  std::map<partition::StageId, double> most;
  for (const RankForecast& alike : forecast.ranks) {
    most[alike.stage] = std::max(most[alike.stage], alike.work);
  }
  double least = 1;
  for (const RankForecast& alike : forecast.ranks) {
    const bool is_one =
        std::ranges::any_of(alike.members, [&](std::int64_t rank) { return std::ranges::binary_search(ranks, rank); });
    least = is_one && most[alike.stage] > 0 ? std::min(least, alike.work / most[alike.stage]) : least;
  }
  return least;
}

/// The settings for fewer ranks along these mesh axes: as many as the `size` indices of the short dimension.
std::string fewer_ranks(const job::Job& job, const mesh::Mesh& mesh, const Axes& axes, std::int64_t size) {
  const std::int64_t ranks = mesh.ranks() / parts_of(mesh, axes) * size;
  if (job.mesh.empty()) {
    return fmt::format("[job] ranks = {}", ranks);
  }
  return axes.size() == 1 ? fmt::format("[mesh] {} = {} and [job] ranks = {}", names_of(mesh, axes), size, ranks)
                          : fmt::format("{} ranks along {} ([job] ranks = {})", size, names_of(mesh, axes), ranks);
}

void explain_rows(const job::Job& job, const ShortDimension& rows, const mesh::Mesh& mesh, IdleRanks& idle) {
  const std::int64_t parts = parts_of(mesh, rows.axes);
  const bool trains = job.task == job::Task::train;
  const std::int64_t microbatches = trains ? job.data.microbatches : 1;
  idle.reason = fmt::format("{} {} {} {} of {} ranks{} busy", microbatches == 1 ? "a batch of" : "microbatches of",
                            counted(rows.size, "row"), microbatches == 1 ? "keeps" : "keep", rows.size, parts,
                            parts == mesh.ranks() ? "" : " along " + names_of(mesh, rows.axes));
  std::vector<std::string> remedies;
  if (microbatches > 1 && job.data.batch >= parts) {
    remedies.push_back(fmt::format("[data] microbatches = {}", job.data.batch / parts));
  }
  if (!job::generates(job)) {
    remedies.push_back(fmt::format("[{}] batch = {}", trains ? "data" : "infer", parts * microbatches));
  } else if (job.infer.slots > 0 && job.infer.slots < parts) {  // otherwise there are fewer prompts, or no more memory
    remedies.push_back(fmt::format("[infer] slots = {}", parts));
  }
  remedies.push_back(fewer_ranks(job, mesh, rows.axes, rows.size));
  idle.remedy = fmt::format("{}", fmt::join(remedies, ", or "));
}

/// Explains idle ranks by stages without layers. Returns false if no idle rank is on such a stage.
bool explain_stages(const job::Job& job, const compile::Compiled& compiled, IdleRanks& idle) {
  const partition::Pipeline& pipeline = compiled.partition.pipeline;
  if (!pipeline.exists() || compiled.graph.layers == 0) {
    return false;
  }
  std::set<partition::StageId> busy;
  for (std::int32_t layer = 0; layer < compiled.graph.layers; ++layer) {
    busy.insert(pipeline.stage_of(layer));
  }
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  const bool has_idle_stage = std::ranges::any_of(idle.ranks, [&](std::int64_t rank) {
    return !busy.contains(compiled.partition.stage_at(mesh::coordinates_of(mesh, rank)));
  });
  if (!has_idle_stage) {
    return false;
  }
  const auto stages = static_cast<std::int64_t>(busy.size());
  idle.reason = fmt::format("{} {} {} of {} stages busy", counted(compiled.graph.layers, "layer"),
                            compiled.graph.layers == 1 ? "keeps" : "keep", stages, pipeline.stages());
  idle.remedy = fewer_ranks(job, mesh, {pipeline.axis}, stages);
  return true;
}

void explain(const job::Job& job, const compile::Compiled& compiled, IdleRanks& idle) {
  if (explain_stages(job, compiled, idle)) {
    return;
  }
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  const std::vector<ShortDimension> dimensions = short_dimensions(compiled);
  const auto best = std::ranges::max_element(dimensions, {}, [&](const ShortDimension& dimension) {
    return std::pair(explained(dimension, idle.ranks, mesh), dimension.is_rows);
  });
  if (best == dimensions.end() || explained(*best, idle.ranks, mesh) == 0) {
    return;
  }
  if (best->is_rows) {
    explain_rows(job, *best, mesh, idle);
    return;
  }
  idle.reason = fmt::format("{} {} keep {} of {} ranks{} busy", best->size,
                            best->name.empty() ? "indices of a dimension" : "indices of " + best->name, best->size,
                            parts_of(mesh, best->axes),
                            parts_of(mesh, best->axes) == mesh.ranks() ? "" : " along " + names_of(mesh, best->axes));
  idle.remedy = fewer_ranks(job, mesh, best->axes, best->size);
}

std::string flop(double flops) { return human_quantity(flops, "FLOP"); }

}  // namespace

std::optional<IdleRanks> idle_ranks(const job::Job& job, const compile::Compiled& compiled, const Forecast& forecast) {
  IdleRanks idle{.ranks_in_all = compiled.partition.placements.mesh.ranks(),
                 .work = job.task == job::Task::train   ? "forward and backward in a step"
                         : job::generates(job)          ? "decoding a token"
                         : job.task == job::Task::infer ? "a batch"
                                                        : "an iteration"};
  for (const RankForecast& alike : forecast.ranks) {
    idle.most = std::max(idle.most, alike.work);
  }
  for (const RankForecast& alike : forecast.ranks) {
    if (alike.work < idle.most / idle_share) {
      idle.ranks.insert(idle.ranks.end(), alike.members.begin(), alike.members.end());
      idle.most_idle = std::max(idle.most_idle, alike.work);
    }
  }
  if (idle.ranks.empty()) {
    return std::nullopt;
  }
  std::ranges::sort(idle.ranks);
  explain(job, compiled, idle);
  return idle;
}

std::vector<RanksWithout> ranks_without(const compile::Compiled& compiled, const Forecast& forecast,
                                        const std::optional<IdleRanks>& idle) {
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  std::vector<RanksWithout> all;
  for (const ShortDimension& dimension : short_dimensions(compiled)) {
    if (dimension.is_rows || dimension.name.empty()) {
      continue;
    }
    RanksWithout found{
        .axis = dimension.name,
        .ranks = {},
        .size = dimension.size,
        .split_over = fmt::format("{} ranks along {}", parts_of(mesh, dimension.axes), names_of(mesh, dimension.axes))};
    for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
      const bool is_idle = idle && std::ranges::binary_search(idle->ranks, rank);
      if (!is_idle && explained(dimension, {rank}, mesh) == 1) {
        found.ranks.push_back(rank);
      }
    }
    found.share = least_work_share(forecast, found.ranks);
    if (!found.ranks.empty()) {
      all.push_back(std::move(found));
    }
  }
  return all;
}

std::string unsplit_notice(const compile::Compiled& compiled, const Forecast& forecast) {
  constexpr double rounding = 1e-3;
  const std::int64_t ranks = compiled.partition.placements.mesh.ranks();
  const double all = compile::flops_per_step(compiled);
  const bool is_unsplit = ranks > 1 && std::ranges::all_of(forecast.ranks, [&](const RankForecast& each) {
                            return each.flops >= (1 - rounding) * all;
                          });
  return is_unsplit ? fmt::format(
                          "each of the {} ranks computes all of the job, {}: nothing is split. Split an axis, such as "
                          "[sharding] batch = AXIS, or set [job] ranks = 1",
                          ranks, flop(all))
                    : "";
}

std::string to_string(const RanksWithout& without) {
  const bool is_one = without.ranks.size() == 1;
  return fmt::format(
      "{} {} {} no {} and {} idle where others compute with them, with {:.3g} % of the busiest rank's FLOPs in forward "
      "and backward: a dimension of {} is split over {}",
      is_one ? "rank" : "ranks", mesh::ranks_text(without.ranks), is_one ? "has" : "have", without.axis,
      is_one ? "is" : "are", 100 * without.share, without.size, without.split_over);
}

std::string to_string(const IdleRanks& idle) {
  const auto count = static_cast<std::int64_t>(idle.ranks.size());
  std::string text =
      fmt::format("{} of {} ranks {} idle ({} {}): {} to do of {}, where the busiest has {}", count, idle.ranks_in_all,
                  count == 1 ? "is" : "are", count == 1 ? "rank" : "ranks", mesh::ranks_text(idle.ranks),
                  idle.most_idle == 0 ? "nothing" : (count == 1 ? "" : "at most ") + flop(idle.most_idle), idle.work,
                  flop(idle.most));
  if (!idle.reason.empty()) {
    text += fmt::format("; {}: set {}", idle.reason, idle.remedy);
  }
  return text;
}

}  // namespace shardrun::forecast
