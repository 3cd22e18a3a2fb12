#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/base/text.h"
#include "core/cli/options.h"
#include "core/compile/model.h"
#include "core/graph/op_reference.h"
#include "core/job/raw.h"
#include "core/job/reference.h"
#include "core/job/schema.h"
#include "plugins/loader/model.h"

namespace shardrun::cli {
namespace {

std::string model_reference(const plugins::Directories& directories) {
  std::string text = "\nmodels, and what [model] takes for each\n";
  const workload::Models models = compile::models_in(directories);
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

std::string job_help(const Parsed& parsed, const plugins::Directories& directories) {
  if (!parsed.has("markdown")) {
    return job::job_reference() + model_reference(directories);
  }
  if (parsed.positional.size() > 1) {
    throw Error(ErrorCode::usage, "help job --markdown has no models: leave out the job file");
  }
  return job::job_reference_markdown();
}

/// Help on the ops of shardrun, or on those that the model of a job file defines. Of the job file, only the
/// syntax, [plugins] and the model's name must be valid.
std::string ops_help(const Parsed& parsed, const plugins::Directories& directories) {
  std::string model;
  if (parsed.positional.size() > 1) {
    const job::RawJob job = job::read_job_file(parsed.positional[1], parsed.all("set"));
    const job::RawSection* const section = job.find("model");
    const job::RawSetting* const name = section != nullptr ? section->find("name") : nullptr;
    if (name == nullptr) {
      throw Error(ErrorCode::job, fmt::format("{}: [model] name is not set, so no model can bring ops", job.file));
    }
    model = name->value;
    if (plugins::Model::open(directories, model).ops().empty()) {
      throw Error(
          ErrorCode::usage,
          fmt::format("the model '{}' brings no ops; 'shardrun help ops' has those that every model can call", model));
    }
  }
  return parsed.has("markdown") ? graph::op_reference_markdown(model) : graph::op_reference(model);
}

int help(std::span<const std::string> words) {
  const Parsed parsed =
      parse("help", words,
            {{.name = "markdown", .help = "help job, help ops: in the form of docs/job-file.md and docs/ops.md"},
             set_option()},
            0, 2);
  if (parsed.help_shown) {
    return 0;
  }
  if (parsed.positional.empty()) {
    return main(std::vector<std::string>{"--help"});
  }
  const std::string& topic = parsed.positional[0];
  if (topic == "job" || topic == "ops") {
    const plugins::Directories directories = directories_of(parsed, 1);
    fmt::print("{}", printable_lines(topic == "job" ? job_help(parsed, directories) : ops_help(parsed, directories)));
    return 0;
  }
  std::vector<std::string> names = {"job", "ops"};
  for (const Command& command : commands()) {
    if (command.name == fmt::format("{}", fmt::join(parsed.positional, " "))) {
      return command.run(std::vector<std::string>{"--help"});
    }
    names.push_back(command.name);
  }
  if (parsed.positional.size() > 1) {
    throw Error(ErrorCode::usage, fmt::format("help {}: did not expect '{}'", topic, parsed.positional[1]));
  }
  if (const std::string section = job::section_reference(topic); !section.empty()) {
    fmt::print("{}", section);
    return 0;
  }
  std::vector<std::string> sections;
  std::ranges::transform(job::schema(), std::back_inserter(sections), &job::Section::name);
  names.insert(names.end(), sections.begin(), sections.end());
  throw Error(ErrorCode::usage,
              fmt::format("no help on '{}'{}; there is help on job, on ops, on every command, and on the sections of "
                          "the job file: {}",
                          topic, did_you_mean(topic, names), fmt::join(sections, ", ")));
}

const RegisterCommand help_command(
    {.name = "help",
     .arguments = "[TOPIC [JOB.ini]]",
     .help =
         "'help job' and 'help ops' are references; with a job file, of its models' options and ops; 'help SECTION' "
         "is a section of the job file, such as mesh",
     .run = help});

}  // namespace
}  // namespace shardrun::cli
