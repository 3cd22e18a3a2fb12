#include <fmt/format.h>

#include <cstdio>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/cli/options.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/graph/op_reference.h"
#include "core/job/reference.h"

namespace shardrun::cli {
namespace {

std::string model_reference() {
  std::string text = "\nmodels, and what [model] takes for each\n";
  const workload::Models models = compile::models_in(compile::directories_of({}));
  for (const std::string& name : models.names()) {
    try {
      const workload::Model model = models.find(name).value();
      text += fmt::format("\nname = {}    {}\n{}", name, model.help, job::options_reference(model.options));
    } catch (const Error& error) {
      text += fmt::format("\nname = {}    cannot be used: {}\n", name, error.message());
    }
  }
  return text;
}

int help(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "help", words,
      {{.name = "markdown", .help = "help job, help ops: in the form of docs/job-file.md and docs/ops.md"}}, 0, 1);
  if (parsed.help_shown) {
    return 0;
  }
  if (parsed.positional.empty()) {
    return main(std::vector<std::string>{"--help"});
  }
  const std::string& topic = parsed.positional[0];
  if (topic == "job") {
    fmt::print("{}", parsed.has("markdown") ? job::job_reference_markdown() : job::job_reference() + model_reference());
    return 0;
  }
  if (topic == "ops") {
    fmt::print("{}", parsed.has("markdown") ? graph::op_reference_markdown() : graph::op_reference());
    return 0;
  }
  std::vector<std::string> names = {"job", "ops"};
  for (const Command& command : commands()) {
    if (command.name == topic) {
      return command.run(std::vector<std::string>{"--help"});
    }
    names.push_back(command.name);
  }
  throw Error(ErrorCode::usage, fmt::format("no help on '{}'{}; there is help on job, on ops and on every command",
                                            topic, did_you_mean(topic, names)));
}

const RegisterCommand help_command({.name = "help",
                                    .arguments = "[TOPIC]",
                                    .help = "'help job' is the reference of the job file, 'help ops' of the ops",
                                    .run = help});

}  // namespace
}  // namespace shardrun::cli
