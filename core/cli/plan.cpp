#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdio>

#include "core/cli/dump.h"
#include "core/cli/options.h"
#include "core/metrics/human.h"
#include "core/task/compile.h"

namespace shardrun::cli {
namespace {

std::string as_json(const task::Compiled& compiled) {
  namespace json = boost::json;
  const partition::MemoryUse& memory = compiled.programs.memory;
  const json::object bytes = {{"parameters", memory.parameters},
                              {"gradients", memory.gradients},
                              {"optimizer", memory.optimizer},
                              {"activations", memory.activations},
                              {"communication", memory.communication},
                              {"scratch", memory.scratch},
                              {"peak", memory.peak}};
  const json::object rank = {
      {"members", json::array{0}}, {"bytes", bytes}, {"sent_bytes", json::object()}, {"bubble", 0.0}};
  const json::object plan = {{"parameters", graph::parameter_count(compiled.graph)},
                             {"flops_per_step", task::flops_per_step(compiled)},
                             {"ranks", json::array{rank}}};
  return json::serialize(plan) + "\n";
}

std::string as_text(const job::Job& job, const task::Compiled& compiled) {
  const partition::MemoryUse& memory = compiled.programs.memory;
  std::string text = fmt::format(
      "model {}, strategy {}, {} rank, {} threads\nparameters {:>21}\nFLOPs a step {:>19}   {}FLOP\n\n", job.model.name,
      job.strategy.name, job.ranks, compiled.programs.threads, graph::parameter_count(compiled.graph),
      task::flops_per_step(compiled), metrics::human_count(static_cast<double>(task::flops_per_step(compiled))));
  text += fmt::format("{:<16} {:>15}\n", "rank 0", "bytes");
  const auto row = [&](const char* name, std::uint64_t bytes) {
    text += fmt::format("{:<16} {:>15}   {}\n", name, bytes, metrics::human_bytes(bytes));
  };
  row("parameters", memory.parameters);
  row("gradients", memory.gradients);
  row("optimizer", memory.optimizer);
  row("activations", memory.activations);
  row("communication", memory.communication);
  row("scratch", memory.scratch);
  row("peak", memory.peak);
  text += "\ntransients by function, and the least that any layout needs\n";
  for (const partition::Program& program : compiled.programs.programs) {
    text += fmt::format(
        "{:<16} {:>15}   {}   busiest at {}\n",
        program.rows == 0 ? program.function : fmt::format("{}, {} rows", program.function, program.rows),
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
    fmt::print("{}", parsed.has("json") ? as_json(compiled) : as_text(job, compiled));
  }
  return 0;
}

const RegisterCommand command(
    {.name = "plan", .arguments = "JOB.ini", .help = "memory and work of a job, before it runs", .run = plan});

}  // namespace
}  // namespace shardrun::cli
