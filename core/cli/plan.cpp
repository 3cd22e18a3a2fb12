#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>

#include "core/cli/dump.h"
#include "core/cli/options.h"
#include "core/mesh/shards.h"
#include "core/metrics/human.h"
#include "core/task/compile.h"

namespace shardrun::cli {
namespace {

/// Ranks that need and send the same.
struct RankClass {
  std::vector<std::int64_t> members;
  partition::MemoryUse memory;
  partition::SentBytes sent;
};

std::vector<RankClass> classes_of(const job::Job& job, const task::Compiled& compiled) {
  std::vector<RankClass> classes;
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    const partition::Programs programs = rank == 0 ? compiled.programs : task::programs_of_rank(job, compiled, rank);
    const partition::SentBytes sent = task::sent_bytes_per_step(compiled, programs);
    const auto alike = std::find_if(classes.begin(), classes.end(), [&](const RankClass& known) {
      return known.memory == programs.memory && known.sent == sent;
    });
    if (alike != classes.end()) {
      alike->members.push_back(rank);
    } else {
      classes.push_back({{rank}, programs.memory, sent});
    }
  }
  return classes;
}

boost::json::object json_of(const RankClass& ranks) {
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
          {"bubble", 0.0}};
}

std::string as_json(const job::Job& job, const task::Compiled& compiled) {
  namespace json = boost::json;
  json::array ranks;
  for (const RankClass& alike : classes_of(job, compiled)) {
    ranks.push_back(json_of(alike));
  }
  const json::object plan = {{"parameters", graph::parameter_count(compiled.graph)},
                             {"flops_per_step", task::flops_per_step(compiled)},
                             {"ranks", std::move(ranks)}};
  return json::serialize(plan) + "\n";
}

std::string as_text(const RankClass& ranks) {
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
  for (const auto& [axis, collectives] : ranks.sent) {
    text += fmt::format("sent each step over mesh axis {}\n", axis);
    for (const auto& [collective, bytes] : collectives) {
      row(collective, bytes);
    }
  }
  return text;
}

std::string as_text(const job::Job& job, const task::Compiled& compiled) {
  std::string text = fmt::format(
      "model {}, strategy {}, {} {}, {} {} each\nparameters {:>21}\nFLOPs a step {:>19}   {}FLOP\n", job.model.name,
      job.strategy.name, job.ranks, job.ranks == 1 ? "rank" : "ranks", compiled.programs.threads,
      compiled.programs.threads == 1 ? "thread" : "threads", graph::parameter_count(compiled.graph),
      task::flops_per_step(compiled), metrics::human_count(static_cast<double>(task::flops_per_step(compiled))));
  for (const RankClass& alike : classes_of(job, compiled)) {
    text += as_text(alike);
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
    fmt::print("{}", parsed.has("json") ? as_json(job, compiled) : as_text(job, compiled));
  }
  return 0;
}

const RegisterCommand command(
    {.name = "plan", .arguments = "JOB.ini", .help = "memory, traffic and work of a job, before it runs", .run = plan});

}  // namespace
}  // namespace shardrun::cli
