#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/cli/applied_job.h"
#include "core/cli/run.h"
#include "core/files/gguf.h"
#include "core/job/ini.h"

namespace shardrun::cli {
namespace {

constexpr std::pair<const char*, const char*> settings_of_options[] = {
    {"from", "infer.from"}, {"to", "infer.to"},           {"batch", "infer.batch"},
    {"ranks", "job.ranks"}, {"strategy", "job.strategy"}, {"transport", "job.transport"}};

/// The settings that the command's options stand for, and those of --set.
std::vector<std::string> overrides_of(const Parsed& parsed) {
  std::vector<std::string> overrides = parsed.all("set");
  for (const auto& [option, setting] : settings_of_options) {
    if (const std::optional<std::string> value = parsed.get(option)) {
      overrides.push_back(fmt::format("{}={}", setting, *value));
    }
  }
  return overrides;
}

/// Replaces the places of settings that came from options by the options' names, such as "--from", for messages.
job::RawJob placed(job::RawJob raw, const Parsed& parsed) {
  for (job::RawSection& section : raw.sections) {
    for (job::RawSetting& each : section.settings) {
      const auto option = std::ranges::find_if(settings_of_options, [&](const auto& known) {
        return known.second == section.name + "." + each.key && parsed.has(known.first);
      });
      each.where = option == std::end(settings_of_options) ? each.where : fmt::format("--{}", option->first);
    }
  }
  return raw;
}

/// Adds `infer.to=-`, standard output, if no override has `infer.to`. Throws Error{usage} if that is a terminal, or if
/// no override names the samples.
std::vector<std::string> with_target(std::vector<std::string> overrides) {
  const auto has = [&](std::string_view setting) {
    return std::ranges::any_of(overrides, [&](const std::string& each) { return each.starts_with(setting); });
  };
  if (!has("infer.from=")) {
    throw Error(ErrorCode::usage, "predict: name the array of samples with --from FILE.npy, or - for standard input");
  }
  if (!has("infer.to=")) {
    if (::isatty(STDOUT_FILENO) == 1) {
      throw Error(ErrorCode::usage,
                  "predict: predictions are a .npy file, which a terminal cannot show: name a file with "
                  "--to, or send standard output elsewhere");
    }
    overrides.emplace_back("infer.to=-");
  }
  return overrides;
}

/// The given job file, or one that is made from a run, a checkpoint or a weights file.
job::RawJob raw_job(const Parsed& parsed) {
  const std::filesystem::path path = parsed.positional.at(0);
  std::error_code none;
  if (!std::filesystem::exists(path, none)) {
    throw Error(ErrorCode::usage,
                fmt::format("predict: there is no run, checkpoint, weights file or job file '{}'", path.native()));
  }
  if (std::filesystem::is_directory(path, none) || path.extension() == ".safetensors" || files::is_gguf(path)) {
    return job_of_weights(parsed, "predict", path, with_target(overrides_of(parsed)));
  }
  const job::RawJob raw = job::read_job_file(path);
  const job::RawSection* const section = raw.find("job");
  const job::RawSetting* const task = section == nullptr ? nullptr : section->find("task");
  if (task != nullptr && task->value == "infer") {
    return job::read_job_file(path, overrides_of(parsed));
  }
  return job_of_weights(parsed, "predict", run_of_job("predict", path), with_target(overrides_of(parsed)));
}

int predict(std::span<const std::string> words) {
  std::vector<OptionSyntax> options = {
      {.name = "from", .value = "FILE", .help = "the .npy file whose rows are the samples; - is standard input"},
      {.name = "to",
       .value = "FILE",
       .help = "the .npy file of the predictions, a row for each sample (default: standard output)"},
      replace_option(),
      {.name = "batch", .value = "N", .help = "samples at once, over all ranks (default 32)"},
      {.name = "ranks", .value = "N", .help = "ranks in place of the run's"},
      {.name = "strategy", .value = "NAME", .help = "the strategy in place of the run's, without its [mesh]"},
      {.name = "transport", .value = "NAME", .help = "the transport in place of the run's"}};
  std::ranges::move(run_options(), std::back_inserter(options));
  const Parsed parsed = parse("predict", words, options, 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  return run_job("predict", words, parsed, checked_job(parsed, placed(raw_job(parsed), parsed)));
}

const RegisterCommand predict_command(
    {.name = "predict",
     .arguments = "WHAT",
     .help =
         "apply a trained model to arrays; WHAT is a run's folder, a checkpoint, a weights file, a folder of Hugging "
         "Face's libraries, a GGUF file or a job file",
     .run = predict});

}  // namespace
}  // namespace shardrun::cli
