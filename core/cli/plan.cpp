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

boost::json::object json_of(const partition::Timeline& timeline) {
  namespace json = boost::json;
  json::array stages;
  for (const std::vector<partition::TimedAction>& stage : timeline.stages) {
    json::array& actions = stages.emplace_back(json::array()).as_array();
    for (const partition::TimedAction& each : stage) {
      actions.push_back(
          {{"action", partition::to_string(each.action)}, {"begin", each.begin}, {"end", each.end}});
    }
  }
  return {{"costs", "units"}, {"end", timeline.end}, {"stages", std::move(stages)}};
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
  if (forecast.timeline) {
    plan["timeline"] = json_of(*forecast.timeline);
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

std::string as_text(const job::Job& job, const task::Compiled& compiled, const task::Forecast& forecast) {
  std::string text = fmt::format(
      "model {}, strategy {}, {} {}, {} {} each\nparameters {:>21}\nFLOPs a step {:>19}   {}FLOP\n", job.model.name,
      job.strategy.name, job.ranks, job.ranks == 1 ? "rank" : "ranks", compiled.programs.threads,
      compiled.programs.threads == 1 ? "thread" : "threads", graph::parameter_count(compiled.graph),
      task::flops_per_step(compiled), metrics::human_count(static_cast<double>(task::flops_per_step(compiled))));
  for (const task::RankForecast& alike : forecast.ranks) {
    text += as_text(alike);
  }
  if (forecast.timeline) {
    constexpr std::size_t width = 160;
    text += "\ntimeline of a step before the update: each forward, and each part of backward, takes 1\n" +
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
  text += "\ntransients of rank 0 by function, and the least that any layout needs\n";
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
