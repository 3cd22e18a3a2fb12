#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>

#include "core/cli/dump.h"
#include "core/cli/options.h"
#include "core/mesh/shards.h"
#include "core/metrics/human.h"
#include "core/task/compile.h"
#include "core/task/forecast.h"

namespace shardrun::cli {
namespace {

boost::json::object json_of(const task::RankForecast& ranks, const task::Forecast& forecast) {
  namespace json = boost::json;
  const partition::MemoryUse& memory = ranks.memory;
  json::object sent;
  for (const auto& [axis, collectives] : ranks.sent) {
    json::object& of_axis = sent[axis].emplace_object();
    for (const auto& [collective, bytes] : collectives) {
      of_axis[collective] = bytes;
    }
  }
  return {{"members", json::array(ranks.members.begin(), ranks.members.end())},
          {"bytes",
           {{"parameters", memory.parameters},
            {"gradients", memory.gradients},
            {"optimizer", memory.optimizer},
            {"activations", memory.activations},
            {"communication", memory.communication},
            {"scratch", memory.scratch},
            {"peak", memory.peak}}},
          {"sent_bytes", std::move(sent)},
          {"flops", ranks.flops},
          {"busiest", {{"function", ranks.busiest_function}, {"instruction", ranks.busiest_instruction}}},
          {"stage", ranks.stage},
          {"bubble", forecast.timeline ? forecast.timeline->bubble(static_cast<std::size_t>(ranks.stage)) : 0.0}};
}

/// Where the costs of what is predicted come from.
const char* costs_of(const task::Forecast& forecast) {
  if (!forecast.step) {
    return "units";
  }
  return forecast.step->measured ? "measured" : "cluster";
}

boost::json::object json_of(const task::StepForecast& step) {
  namespace json = boost::json;
  json::array stages;
  for (std::size_t s = 0; s < step.prediction.stages.size(); ++s) {
    const partition::StagePrediction& stage = step.prediction.stages[s];
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
  if (step.utilisation) {
    predicted["utilisation"] = *step.utilisation;
  }
  return predicted;
}

boost::json::object json_of(const partition::Timeline& timeline, const char* costs) {
  namespace json = boost::json;
  json::array stages;
  for (const std::vector<partition::TimedAction>& stage : timeline.stages) {
    json::array& actions = stages.emplace_back(json::array()).as_array();
    for (const partition::TimedAction& each : stage) {
      actions.push_back({{"action", partition::to_string(each.action)}, {"begin", each.begin}, {"end", each.end}});
    }
  }
  return {{"costs", costs}, {"end", timeline.end}, {"stages", std::move(stages)}};
}

std::string as_json(const task::Compiled& compiled, const task::Forecast& forecast) {
  namespace json = boost::json;
  json::array ranks;
  for (const task::RankForecast& alike : forecast.ranks) {
    ranks.push_back(json_of(alike, forecast));
  }
  json::object plan = {{"parameters", graph::parameter_count(compiled.graph)},
                       {"flops_per_step", task::flops_per_step(compiled)},
                       {"ranks", std::move(ranks)}};
  if (const auto* hook = compiled.partition.placements.find_hook(plugins::HookKind::after_step)) {
    plan["after_step_every"] = hook->every;
  }
  if (forecast.timeline) {
    plan["timeline"] = json_of(*forecast.timeline, costs_of(forecast));
  }
  if (forecast.step) {
    plan["predicted"] = json_of(*forecast.step);
  }
  return json::serialize(plan) + "\n";
}

std::string as_text(const task::RankForecast& ranks) {
  const std::string members = (ranks.members.size() == 1 ? "rank " : "ranks ") + mesh::ranks_text(ranks.members);
  std::string text = fmt::format("\n{:<16} {:>15}\n", members, "bytes");
  const auto row = [&](const std::string& name, std::uint64_t bytes) {
    text += fmt::format("{:<16} {:>15}   {}\n", name, bytes, metrics::human_bytes(bytes));
  };
  row("parameters", ranks.memory.parameters);
  row("gradients", ranks.memory.gradients);
  row("optimizer", ranks.memory.optimizer);
  row("activations", ranks.memory.activations);
  row("communication", ranks.memory.communication);
  row("scratch", ranks.memory.scratch);
  row("peak", ranks.memory.peak);
  text += fmt::format("{:<16} {:>15}   {}FLOP\n", "FLOPs a step", ranks.flops,
                      metrics::human_count(static_cast<double>(ranks.flops)));
  text += fmt::format("busiest in {} at {}\n", ranks.busiest_function, ranks.busiest_instruction);
  for (const auto& [axis, collectives] : ranks.sent) {
    text += fmt::format("sent each step over mesh axis {}\n", axis);
    for (const auto& [collective, bytes] : collectives) {
      row(collective, bytes);
    }
  }
  return text;
}

/// REQUIRES: a step is predicted.
std::string predicted_text(const task::Forecast& forecast) {
  const task::StepForecast& step = *forecast.step;
  constexpr double ms = 1e3;
  std::string text = fmt::format("\npredicted time of a step, costs: {}\n{:<16} {:>15.3f} ms\n", costs_of(forecast),
                                 "step", step.prediction.seconds * ms);
  const auto rate = [&](const char* what, double per_second) {
    if (per_second > 0) {
      text += fmt::format("{:<16} {:>15}\n", what, metrics::human_count(per_second));
    }
  };
  rate("samples a second", step.samples_per_s);
  rate("tokens a second", step.tokens_per_s);
  text += fmt::format("{:<16} {:>15}   a second and rank, without what is computed again", "model FLOPs",
                      metrics::human_count(step.model_flops_per_s));
  text += step.utilisation ? fmt::format(": {:.1f} % of [cluster] flops\n", 100 * *step.utilisation) : "\n";
  text += fmt::format("{:<16} {:>15} {:>15} {:>15} {:>15}\n", "ms", "computing", "communication", "waiting", "hidden");
  for (std::size_t s = 0; s < step.prediction.stages.size(); ++s) {
    const partition::StagePrediction& stage = step.prediction.stages[s];
    text += fmt::format("{:<16} {:>15.3f} {:>15.3f} {:>15.3f} {:>15.3f}\n",
                        fmt::format("stage {}, rank {}", s, step.ranks[s]), stage.compute * ms, stage.exposed * ms,
                        stage.waiting * ms, stage.hidden * ms);
  }
  return text;
}

std::string transients_text(const task::Compiled& compiled) {
  std::string text = "\nmemory of rank 0 beside the states, by function; the least that any order of buffers needs\n";
  for (const partition::Program& program : compiled.programs.programs) {
    text += fmt::format(
        "{:<16} {:>15}   {}   busiest at {}\n",
        program.rows == 0
            ? program.function
            : fmt::format("{}, {} rows{}", program.function, program.rows, program.settles ? ", last" : ""),
        program.transient_bytes, program.least_bytes,
        program.instructions.empty() ? "-"
                                     : program
                                           .instructions[std::min(static_cast<std::size_t>(program.peak_instruction),
                                                                  program.instructions.size() - 1)]
                                           .name);
  }
  return text;
}

std::string as_text(const job::Job& job, const task::Compiled& compiled, const task::Forecast& forecast) {
  std::string text = fmt::format(
      "model {}, strategy {}, {} {}, {} {} each\nparameters {:>21}\nFLOPs a step {:>19}   {}FLOP\n", job.model.name,
      job.strategy.name, job.ranks, job.ranks == 1 ? "rank" : "ranks", compiled.programs.threads,
      compiled.programs.threads == 1 ? "thread" : "threads", graph::parameter_count(compiled.graph),
      task::flops_per_step(compiled), metrics::human_count(static_cast<double>(task::flops_per_step(compiled))));
  if (const auto* hook = compiled.partition.placements.find_hook(plugins::HookKind::after_step)) {
    text +=
        fmt::format("a step is one that the strategy's hook follows, as it does every {} and the last\n", hook->every);
  }
  text += forecast.step ? predicted_text(forecast) : "";
  for (const task::RankForecast& alike : forecast.ranks) {
    text += as_text(alike);
  }
  if (forecast.timeline) {
    constexpr std::size_t width = 160;
    text += fmt::format("\ntimeline of a step before the update, costs: {}: {}\n", costs_of(forecast),
                        forecast.step ? "an action takes what its instructions take; what is sent takes no time"
                                      : "each forward, and each part of backward, takes 1") +
            partition::draw(*forecast.timeline, width);
    for (std::size_t stage = 0; stage < compiled.partition.pipeline.actions.size(); ++stage) {
      const std::vector<plugins::Action>& actions = compiled.partition.pipeline.actions[stage];
      const auto forwards = std::count_if(actions.begin(), actions.end(), [](const plugins::Action& action) {
        return action.kind == plugins::Action::Kind::forward;
      });
      text += fmt::format("stage {:<3} keeps the activations of up to {} of {} forwards\n", stage,
                          partition::most_live_forwards(actions), forwards);
    }
  }
  // These are of the run, which is in float32.
  return job.train.precision == job::Precision::mixed ? text : text + transients_text(compiled);
}

int plan(std::span<const std::string> words) {
  const Parsed parsed =
      parse("plan", words, {set_option(), {.name = "json", .help = "print JSON"}, dump_option()}, 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const job::Job job = read_job(parsed);
  const task::Compiled compiled = task::compile(job);
  if (!dump(parsed, compiled)) {
    const task::Forecast forecast = task::forecast(job, compiled);
    fmt::print("{}", parsed.has("json") ? as_json(compiled, forecast) : as_text(job, compiled, forecast));
  }
  return 0;
}

const RegisterCommand command(
    {.name = "plan", .arguments = "JOB.ini", .help = "memory, traffic and work of a job, before it runs", .run = plan});

}  // namespace
}  // namespace shardrun::cli
