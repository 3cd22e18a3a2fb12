#include <boost/json.hpp>

#include "core/cli/plan.h"

namespace shardrun::cli {
namespace {

/// A number as an integer if it fits 64 bits. It was summed up as a double, so only 53 bits are exact.
boost::json::value whole_number(double number) {
  constexpr double first_beyond = 0x1p63;
  return number < first_beyond ? boost::json::value(static_cast<std::int64_t>(number)) : boost::json::value(number);
}

boost::json::object json_of(const forecast::Timeline& timeline, const char* costs,
                            const std::optional<forecast::MostWorking>& most) {
  namespace json = boost::json;
  json::array stages;
  for (const std::vector<forecast::TimedAction>& stage : timeline.stages) {
    json::array& actions = stages.emplace_back(json::array()).as_array();
    for (const forecast::TimedAction& each : stage) {
      actions.push_back({{"action", to_string(each.action)}, {"begin", each.begin}, {"end", each.end}});
    }
  }
  json::object object = {
      {"costs", costs}, {"end", timeline.end}, {"working", timeline.working()}, {"stages", std::move(stages)}};
  if (most) {
    object["most_working"] = most->share;
  }
  return object;
}

boost::json::object json_of(const forecast::RanksWithout& without) {
  return {{"axis", without.axis},
          {"size", without.size},
          {"share", without.share},
          {"ranks", boost::json::array(without.ranks.begin(), without.ranks.end())}};
}

boost::json::object json_of(const forecast::IdleRanks& idle) {
  return {{"ranks", boost::json::array(idle.ranks.begin(), idle.ranks.end())},
          {"most_flops", whole_number(idle.most_idle)},
          {"busiest_flops", whole_number(idle.most)},
          {"reason", idle.reason},
          {"remedy", idle.remedy}};
}

boost::json::object json_of(const forecast::DiskUse& use) {
  boost::json::object disk = {{"result", use.result},
                              {"result_bytes", use.result_bytes},
                              {"states_under_way", use.under_way},
                              {"metrics_bytes", use.metrics_bytes},
                              {"record_bytes", use.record_bytes},
                              {"trace_bytes", use.trace_bytes},
                              {"sample_bytes", use.sample_bytes},
                              {"total_bytes", use.total()}};
  if (use.checkpoint_bytes > 0) {
    disk["checkpoint_bytes"] = use.checkpoint_bytes;
  }
  return disk;
}

boost::json::object json_of(const forecast::MemoryFit& fit, const std::optional<forecast::FitSearch>& search) {
  namespace json = boost::json;
  json::object memory = {{"bytes", fit.memory},       {"fits", fit.fits()},          {"most", fit.most},
                         {"rank", fit.ranks.front()}, {"sharing", fit.ranks.size()}, {"whose", fit.whose},
                         {"ranks_over", fit.over}};
  if (search) {
    json::array& tried = memory["tried"].emplace_array();
    for (const forecast::Alternative& alternative : search->tried) {
      json::object& each = tried
                               .emplace_back(json::object{
                                   {"settings", json::array(alternative.settings.begin(), alternative.settings.end())},
                                   {"most", alternative.most},
                                   {"fits", alternative.fits}})
                               .as_object();
      if (alternative.seconds > 0) {
        each["step_s"] = alternative.seconds;
      }
      for (const forecast::Alternative& alike : alternative.alike) {
        json::value& same = each["same_as"];
        (same.is_array() ? same.as_array() : same.emplace_array())
            .emplace_back(json::array(alike.settings.begin(), alike.settings.end()));
      }
    }
  }
  return memory;
}

boost::json::object json_of(const partition::SentBytes& sent) {
  boost::json::object json;
  for (const auto& [axis, collectives] : sent) {
    boost::json::object& of_axis = json[axis].emplace_object();
    for (const auto& [collective, bytes] : collectives) {
      of_axis[collective] = bytes;
    }
  }
  return json;
}

/// Where the run begins, as JSON. REQUIRES: the job has [checkpoint].
boost::json::object json_of(const run::Beginning& beginning) {
  namespace json = boost::json;
  const auto name = [&] {
    switch (beginning.kind) {
      case run::Beginning::Kind::resumed: return "resumed";
      case run::Beginning::Kind::has_ended: return "nothing left";
      case run::Beginning::Kind::is_refused: return "refused";
      default: return "at the start";
    }
  };
  json::object object = {{"how", name()},
                         {"step", beginning.step},
                         {"notices", json::array(beginning.notices.begin(), beginning.notices.end())}};
  if (!beginning.checkpoint.empty()) {
    object["checkpoint"] = beginning.checkpoint.native();
  }
  if (!beginning.refusal.empty()) {
    object["refusal"] = beginning.refusal;
  }
  return object;
}

}  // namespace

boost::json::object json_of(const forecast::RankForecast& ranks, const forecast::Forecast& forecast,
                            const compile::Compiled& compiled) {
  namespace json = boost::json;
  const partition::MemoryUse& memory = ranks.memory;
  json::object bytes = {{"parameters", memory.parameters},
                        {"gradients", memory.gradients},
                        {"optimizer", memory.optimizer},
                        {"activations", memory.activations},
                        {"communication", memory.communication},
                        {"scratch", memory.scratch},
                        {"peak", memory.peak}};
  if (ranks.snapshot > 0) {
    bytes["snapshot"] = ranks.snapshot;
  }
  if (!compiled.device->is_addressable()) {
    bytes["device"] = memory.peak - memory.staging;
    bytes["host"] = memory.staging;
  }
  json::object planned = {
      {"members", json::array(ranks.members.begin(), ranks.members.end())},
      {"bytes", std::move(bytes)},
      {"sent_bytes", json_of(ranks.sent)},
      {"flops", whole_number(ranks.flops)},
      {"busiest", {{"function", ranks.busiest_function}, {"instruction", ranks.busiest_instruction}}},
      {"stage", ranks.stage.number()},
      {"bubble", forecast.timeline ? forecast.timeline->bubble(ranks.stage) : 0.0}};
  json::object programs;
  for (const auto& [name, sent] : ranks.programs) {
    programs[name] = json::object{{"sent_bytes", json_of(sent)}};
  }
  if (!programs.empty()) {
    planned["programs"] = std::move(programs);
  }
  return planned;
}

boost::json::object json_of(const forecast::StepForecast& step) {
  namespace json = boost::json;
  json::array stages;
  for (std::size_t s = 0; s < step.prediction.stages.size(); ++s) {
    const forecast::StagePrediction& stage = step.prediction.stages[s];
    stages.push_back({{"stage", s},
                      {"rank", step.ranks[s]},
                      {"compute_s", stage.compute},
                      {"exposed_communication_s", stage.exposed},
                      {"waiting_s", stage.waiting},
                      {"hidden_communication_s", stage.hidden}});
  }
  json::object predicted = {{"step_s", step.prediction.seconds},
                            {"samples_per_s", step.samples_per_s},
                            {"tokens_per_s", step.tokens_per_s},
                            {"model_flops_per_s", step.model_flops_per_s},
                            {"stages", std::move(stages)}};
  if (step.chunk_s) {
    predicted["prefill_chunk_s"] = *step.chunk_s;
  }
  if (step.utilisation) {
    predicted["utilisation"] = *step.utilisation;
  }
  return predicted;
}

void add_to_plan(boost::json::object& plan, const forecast::DiskUse& disk, const run::Beginning& beginning) {
  plan["disk"] = json_of(disk);
  if (beginning.kind != run::Beginning::Kind::unsaved) {
    plan["beginning"] = json_of(beginning);
  }
}

std::string plan_json(const Planned& planned, const std::optional<forecast::FitSearch>& search) {
  namespace json = boost::json;
  const compile::Compiled& compiled = planned.compiled;
  const forecast::Forecast& forecast = planned.forecast;
  json::array ranks;
  for (const forecast::RankForecast& alike : forecast.ranks) {
    ranks.push_back(json_of(alike, forecast, compiled));
  }
  json::object transports;
  for (const AxisTransport& axis : transports_of(compiled)) {
    transports[axis.axis] = json::object{{"transport", axis.transport}, {"direct", axis.is_direct}};
  }
  json::object plan = {{"parameters", graph::parameter_count(compiled.graph)},
                       {"flops_per_step", whole_number(compile::flops_per_step(compiled))},
                       {"data_bytes", compiled.dataset == nullptr ? 0 : compiled.dataset->host_bytes()},
                       {"machines", planned.machines()},
                       {"ranks", std::move(ranks)},
                       {"transports", std::move(transports)}};
  if (const std::vector<std::int64_t>& order = compiled.partition.placements.mesh.order; !order.empty()) {
    plan["order"] = json::array(order.begin(), order.end());
  }
  if (const std::int64_t shared = planned.job.cluster.ranks_per_machine; shared > 0) {
    plan["between_machines"] =
        json::object{{"ranks_per_machine", shared},
                     {"bytes", compile::bytes_between_machines(compile::traffic_of(planned.job, compiled), shared)}};
  }
  if (const auto* hook = compiled.partition.placements.find_hook(plan::HookKind::after_step)) {
    plan["after_step_every"] = hook->every;
  }
  if (forecast.timeline) {
    plan["timeline"] =
        json_of(*forecast.timeline, costs_of(forecast), forecast::most_working(compiled.partition.pipeline));
  }
  if (job::generates(planned.job)) {
    const sdk::CacheSizes& sizes = compiled.settings.caches;
    plan["slots"] = json::object{{"slots", compiled.slots},
                                 {"groups", compiled.groups},
                                 {"context", sizes.of_sequence * sizes.page},
                                 {"pages", sizes.pages},
                                 {"page", sizes.page}};
  }
  if (forecast.step) {
    plan["predicted"] = json_of(*forecast.step);
  }
  add_to_plan(plan, planned.disk, planned.beginning);
  if (planned.idle) {
    plan["idle"] = json_of(*planned.idle);
  }
  if (!planned.without.empty()) {
    json::array& without = plan["without"].emplace_array();
    for (const forecast::RanksWithout& each : planned.without) {
      without.push_back(json_of(each));
    }
  }
  if (planned.fit) {
    plan["memory"] = json_of(*planned.fit, search);
  }
  return json::serialize(plan) + "\n";
}

}  // namespace shardrun::cli
