#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/human.h"
#include "core/cli/plan.h"
#include "core/cli/sharding.h"
#include "core/report/document.h"

namespace shardrun::cli {
namespace {

namespace json = boost::json;

constexpr std::size_t most_tensors = 200;  ///< if there are more, tensors of alike layers share an entry
constexpr std::size_t most_parts = 10'000;

void add_mesh(json::object& run, const mesh::Mesh& mesh) {
  json::array axes;
  for (const mesh::Axis& axis : mesh.axes) {
    axes.push_back(json::array{axis.name, axis.size});
  }
  json::array ranks;
  for (std::int64_t place = 0; place < mesh.ranks(); ++place) {
    ranks.push_back(mesh.order.empty() ? place : mesh.order[static_cast<std::size_t>(place)]);
  }
  run["mesh"] = json::object{{"axes", std::move(axes)}, {"ranks", std::move(ranks)}};
}

void add_ranks(json::object& run, const job::Job& job, const forecast::Forecast& forecast,
               const compile::Compiled& compiled) {
  const std::vector<RankPlace> places = places_of(job, compiled);
  const std::optional<forecast::MemoryFit> fit = forecast::memory_fit(job, *compiled.device, forecast);
  const mesh::Mesh& mesh = compiled.partition.placements.mesh;
  for (const forecast::RankForecast& alike : forecast.ranks) {
    const json::object planned = cli::json_of(alike, forecast, compiled);
    for (const std::int64_t member : alike.members) {
      json::object& rank = report::rank_of(run, static_cast<std::size_t>(member));
      rank["host"] = places[static_cast<std::size_t>(member)].host;
      rank["device"] = places[static_cast<std::size_t>(member)].device;
      if (fit && fit->ranks.size() == 1) {  // no others share this memory
        rank["memory_limit"] = fit->memory;
      }
      rank["planned"] = planned.at("bytes");
      rank["planned_sent"] = planned.at("sent_bytes");
      rank["stage"] = planned.at("stage");
      rank["bubble"] = planned.at("bubble");
      const mesh::Coordinates coordinates = mesh::coordinates_of(mesh, member);
      json::object& named = rank["place"].emplace_object();
      for (const mesh::AxisId axis : mesh.axes.ids()) {
        named[mesh.axes[axis].name] = coordinates[axis];
      }
    }
  }
}

/// The predicted step as JSON, with the times of the stage that computes longest as fields of their own.
json::value predicted(const std::optional<forecast::StepForecast>& step) {
  if (!step) {
    return nullptr;
  }
  json::object object = cli::json_of(*step);
  const auto& stages = step->prediction.stages;
  if (const auto longest = std::ranges::max_element(stages, {}, &forecast::StagePrediction::compute);
      longest != stages.end()) {
    object["compute_s"] = longest->compute;
    object["exposed_communication_s"] = longest->exposed;
    object["waiting_s"] = longest->waiting;
    object["hidden_communication_s"] = longest->hidden;
  }
  return object;
}

json::value timeline(const forecast::Forecast& forecast) {
  if (!forecast.timeline) {
    return nullptr;
  }
  json::array stages;
  for (const partition::StageId stage : forecast.timeline->stages.ids()) {
    json::array spans;
    for (const forecast::TimedAction& each : forecast.timeline->stages[stage]) {
      spans.push_back(json::array{each.begin, each.end - each.begin, std::string(plan::letter(each.action.kind)),
                                  each.action.chunk, each.action.microbatch});
    }
    json::object object = {{"stage", stage.number()}, {"spans", std::move(spans)}};
    const auto of_stage = std::ranges::find(forecast.ranks, stage, &forecast::RankForecast::stage);
    if (of_stage != forecast.ranks.end()) {
      object["rank"] = of_stage->members.front();
    }
    stages.push_back(std::move(object));
  }
  const bool is_timed = std::string_view(costs_of(forecast)) != "units";
  return json::object{{"stages", std::move(stages)}, {"unit", is_timed ? "s" : "ticks"}};
}

json::array shards_json(const std::vector<mesh::Shard>& shards) {
  json::array list;
  for (const mesh::Shard& shard : shards) {
    json::array ranges;
    for (std::size_t d = 0; d < shard.box.shape.size(); ++d) {
      const mesh::Interval interval = interval_along(shard.box, d);
      ranges.push_back(json::array{interval.begin, interval.end});
    }
    json::object each = {{"ranges", std::move(ranges)}, {"ranks", json::array(shard.ranks.begin(), shard.ranks.end())}};
    if (shard.box.run) {
      each["run"] = json::array{shard.box.run->begin, shard.box.run->end};
    }
    list.push_back(std::move(each));
  }
  return list;
}

/// The tensors whose parts the page shows: parameters, fields, and those moments that are split in another way than
/// their parameters.
class TensorList {
 public:
  explicit TensorList(const compile::Compiled& compiled) : compiled_(compiled) {
    for (const PlacedTensor& tensor : all_states(compiled)) {
      add(tensor);
    }
  }

  void add_to(json::object& run) {
    if (all_.size() > most_tensors) {
      share_entries();
    }
    json::array& tensors = run["tensors"].emplace_array();
    std::size_t parts = 0;
    for (Entry& entry : all_) {
      parts += entry.object.at("shards").as_array().size();
      if (tensors.size() == most_tensors || parts > most_parts) {
        report::add_note(run, fmt::format("{} of {} are shown", tensors.size(), counted(std::ssize(all_), "tensor")));
        break;
      }
      tensors.push_back(std::move(entry.object));
    }
  }

 private:
  struct Entry {
    json::object object;
    std::string first_layer = {};
    std::int64_t count = 1;
  };

  void add(const PlacedTensor& tensor) {
    const bool is_of_engine = compiled_.engine != nullptr;
    if (!is_of_engine && tensor.kind != "parameter" && tensor.kind != "field") {
      return;
    }
    const mesh::Mesh& mesh = compiled_.partition.placements.mesh;
    const std::vector<mesh::Shard> shards = shards_of(tensor, compiled_);
    const auto object = [&](const std::string& name, const std::string& kind, const std::string& placement) {
      return json::object{{"name", name},
                          {"kind", kind == "state" ? "field" : kind},
                          {"shape", json::array(tensor.type.shape.begin(), tensor.type.shape.end())},
                          {"type", to_string(tensor.type.dtype)},
                          {"placement", placement}};
    };
    json::object entry =
        object(tensor.name, tensor.kind, is_of_engine ? "" : to_string(tensor.roles.front().placement, mesh));
    entry["shards"] = shards_json(shards);
    all_.push_back({std::move(entry)});
    const auto moment = std::ranges::find(tensor.roles, "optimizer", &PlacedRole::name);
    if (moment != tensor.roles.end() && moment->placement != tensor.roles.front().placement) {
      PlacedTensor moments = tensor;
      moments.roles = {*moment};
      json::object of_moment = object("moments of " + tensor.name, "moment", to_string(moment->placement, mesh));
      of_moment["shards"] = shards_json(shards_of(moments, compiled_));
      all_.push_back({std::move(of_moment)});
    }
  }

  /// Joins entries that differ only in the number of the layer.
  void share_entries() {
    std::map<std::string, std::size_t> at;
    std::vector<Entry> shared;
    for (Entry& entry : all_) {
      const std::string name(entry.object.at("name").as_string());
      const std::pair<std::size_t, std::size_t> number = layer_number(name);
      if (number.first == number.second) {
        shared.push_back(std::move(entry));
        continue;
      }
      const auto renamed = [&](std::string_view layers) {
        return fmt::format("{}{}{}", name.substr(0, number.first), layers, name.substr(number.second));
      };
      json::object key = entry.object;
      key["name"] = renamed("*");
      const std::string layer = name.substr(number.first, number.second - number.first);
      const auto [same, is_new] = at.try_emplace(json::serialize(key), shared.size());
      if (is_new) {
        entry.first_layer = layer;
        shared.push_back(std::move(entry));
        continue;
      }
      Entry& first = shared[same->second];
      ++first.count;
      first.object["count"] = first.count;
      first.object["name"] = renamed(fmt::format("{{{}-{}}}", first.first_layer, layer));
    }
    all_ = std::move(shared);
  }

  /// The begin and end of the layer's number in a name such as layer.3/mlp/up/weights. They are equal if it has none.
  static std::pair<std::size_t, std::size_t> layer_number(std::string_view name) {
    constexpr std::string_view word = "layer.";
    const std::size_t at = name.find(word);
    if (at == std::string_view::npos) {
      return {0, 0};
    }
    const std::size_t begin = at + word.size();
    const std::size_t end = std::min(name.find_first_not_of("0123456789", begin), name.size());
    return {begin, end};
  }

  const compile::Compiled& compiled_;
  std::vector<Entry> all_;
};

}  // namespace

json::object plan_document(const job::Job& job, const compile::Compiled& compiled) {
  json::object run;
  TensorList(compiled).add_to(run);
  if (compiled.engine != nullptr) {
    report::add_note(
        run, fmt::format("the engine {} plans its own work: there is no mesh and no prediction", job.engine.name));
    return run;
  }
  const forecast::Forecast forecast = forecast::forecast(job, compiled);
  add_mesh(run, compiled.partition.placements.mesh);
  add_ranks(run, job, forecast, compiled);
  run["parameters"] = graph::parameter_count(compiled.graph);
  run["flops_per_step"] = compile::flops_per_step(compiled);
  run["predicted"] = predicted(forecast.step);
  run["timeline"] = timeline(forecast);
  return run;
}

}  // namespace shardrun::cli
