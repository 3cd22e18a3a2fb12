#include "core/cli/applied_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/weights.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/files/folder.h"
#include "core/files/gguf.h"
#include "core/job/ini.h"
#include "core/job/job.h"
#include "core/run/prepare.h"

namespace shardrun::cli {
namespace {

bool is_any_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

/// Whether a job that applies the model leaves out this setting of the run's job file. It leaves out settings of
/// training, and those of splitting and transports that the command line replaces.
bool is_left_out(const Parsed& parsed, std::string_view section, std::string_view key) {
  const bool is_alone = parsed.get("ranks") == "1";
  if (section == "model" && key == "from") {
    return true;  // the given weights replace it
  }
  if (is_any_of(section, {"data", "train", "iterate", "checkpoint", "metrics", "infer"})) {
    return true;
  }
  const bool is_split_anew = parsed.has("strategy") || is_alone;
  if (is_any_of(section, {"mesh", "strategy", "sharding", "cluster"}) || section.starts_with("cluster.")) {
    return is_split_anew;
  }
  if (section == "transport" && is_split_anew) {
    return true;  // the keys name mesh axes, which the new split can lack
  }
  if (section == "transport" || section.starts_with("transport.") || (section == "job" && key == "transport")) {
    return parsed.has("transport") || is_alone;
  }
  return section == "job" &&
         (is_any_of(key, {"task", "checkpoint", "output", "check", "check_every", "restarts", "time_limit", "trace",
                          "trace_first", "trace_steps"}) ||
          (key == "ranks" && parsed.has("ranks")) || (key == "strategy" && (parsed.has("strategy") || is_alone)));
}

/// The text of a job file that applies the model of a run's job file with these weights.
std::string text_of_predictions(const Parsed& parsed, const job::RawJob& of_run, const std::filesystem::path& weights) {
  std::string text = fmt::format("[job]\ntask = infer\ncheckpoint = {}\n",
                                 job::write_value(std::filesystem::absolute(weights).string()));
  for (const bool is_of_job : {true, false}) {
    for (const job::RawSection& section : of_run.sections) {
      if ((section.name == "job") != is_of_job || is_left_out(parsed, section.name, "")) {
        continue;
      }
      text += is_of_job ? "" : fmt::format("\n[{}]\n", section.name);
      for (const job::RawSetting& setting : section.settings) {
        text += is_left_out(parsed, section.name, setting.key)
                    ? ""
                    : fmt::format("{} = {}\n", setting.key, job::write_value(setting.value));
      }
    }
  }
  return text;
}

/// Makes messages about a setting name the option, such as --ranks, that the user typed in place of --set.
void name_as(job::RawJob& raw, std::string_view setting, const std::string& option) {
  const std::size_t dot = setting.find('.');
  for (job::RawSection& section : raw.sections) {
    for (job::RawSetting& each : section.settings) {
      if (section.name == setting.substr(0, dot) && each.key == setting.substr(dot + 1)) {
        each.where = option;
      }
    }
  }
}

}  // namespace

job::RawJob job_of_weights(const Parsed& parsed, const std::string& command, const std::filesystem::path& path,
                           const std::vector<std::string>& overrides) {
  // The model's plugin reads a Hugging Face folder, and --set plugins.path can name the folder of that plugin.
  const job::RawJob settings = job::read_job_text("", command, overrides);
  const checkpoint::GivenWeights given(path, compile::models_in(compile::directories_of(job::plugin_path(settings))));
  const job::RawSection* const model = settings.find("model");
  const bool has_own_context = model != nullptr && model->find("context") != nullptr;
  if (!given.note().empty() && !has_own_context) {
    write_to_standard_error(given.note() + "\n");
  }
  if (given.chosen()) {
    write_to_standard_error(
        fmt::format("applies the checkpoint of step {}: '{}'\n", given.step(), files::human_path(*given.chosen())));
  }
  const std::optional<job::RawJob> of_run = given.job();
  const job::RawJob raw = of_run ? *of_run : checkpoint::job_of(given.source());
  return job::read_job_text(text_of_predictions(parsed, raw, given.source().path), command, overrides);
}

std::filesystem::path run_of_job(const std::string& command, const std::filesystem::path& path) {
  const job::Job job = checked_job({}, job::read_job_file(path));
  std::error_code none;
  if (job.task == job::Task::infer) {
    throw Error(ErrorCode::usage,
                fmt::format("{}: '{}' is a job that applies a model: run it with shardrun run, or name "
                            "the folder of a run",
                            command, path.native()));
  }
  if (!std::filesystem::is_directory(job.output, none)) {
    throw Error(ErrorCode::usage,
                fmt::format("{}: '{}' is a job that trains, and its run {} is not there: run it first, "
                            "or name the folder of a run",
                            command, path.native(), files::human_path(job.output)));
  }
  return job.output;
}

std::vector<OptionSyntax> generating_options() {
  return {{.name = "weights",
           .value = "TYPE",
           .help = "type in which matrices are kept: float32, bfloat16, float16 or int8 (default auto: bfloat16 for a "
                   "quantised GGUF file, otherwise float32)"},
          {.name = "activations",
           .value = "TYPE",
           .help = "type to which products with bfloat16 weights round activations: float32 (default) or bfloat16"},
          {.name = "threads", .value = "N", .help = "threads of each rank to compute with (default 1)"},
          {.name = "ranks", .value = "N", .help = "ranks to compute with, in place of the run's"},
          {.name = "strategy", .value = "NAME", .help = "the strategy in place of the run's, without its [mesh]"},
          {.name = "transport", .value = "NAME", .help = "the transport in place of the run's"},
          plugins_option()};
}

job::RawJob generating_job(const Parsed& parsed, const std::string& command,
                           const std::vector<std::pair<std::string, std::string>>& defaults) {
  std::vector<std::string> overrides = parsed.all("set");
  const auto set = [&](const std::string& setting, const std::string& value) {
    overrides.push_back(fmt::format("{}={}", setting, value));
  };
  constexpr std::pair<const char*, const char*> settings[] = {{"prompts", "infer.from"},
                                                              {"to", "infer.to"},
                                                              {"slots", "infer.slots"},
                                                              {"tokens", "infer.tokens"},
                                                              {"temperature", "infer.temperature"},
                                                              {"top-k", "infer.top_k"},
                                                              {"top-p", "infer.top_p"},
                                                              {"min-p", "infer.min_p"},
                                                              {"seed", "job.seed"},
                                                              {"weights", "infer.weights"},
                                                              {"activations", "infer.activations"},
                                                              {"threads", "job.threads"},
                                                              {"ranks", "job.ranks"},
                                                              {"strategy", "job.strategy"},
                                                              {"transport", "job.transport"}};
  for (const auto& [option, setting] : settings) {
    if (const std::optional<std::string> value = parsed.get(option)) {
      set(setting, *value);
    }
  }
  if (const std::vector<std::filesystem::path> folders = given_plugins(parsed); !folders.empty()) {
    std::string all;
    for (const std::filesystem::path& folder : folders) {
      all += (all.empty() ? "" : ", ") + folder.string();
    }
    set("plugins.path", all);
  }
  const std::filesystem::path path = parsed.positional.at(0);
  std::error_code none;
  const bool is_hub = files::is_gguf(path) || std::filesystem::exists(path / "config.json", none);
  // The model of a Hugging Face folder or GGUF file is built with the context that is needed.
  const char* const context_setting = is_hub ? "model.context" : "infer.context";
  if (const std::optional<std::string> context = parsed.get("context")) {
    set(context_setting, *context);
  }
  const bool is_job = path.extension() == ".ini";
  const job::RawJob file = is_job ? job::read_job_file(path) : job::RawJob();
  const job::RawSection* const own = file.find("job");
  const job::RawSetting* const task = own == nullptr ? nullptr : own->find("task");
  if (is_job && (task == nullptr || task->value != "infer")) {
    throw Error(ErrorCode::usage,
                fmt::format("{}: '{}' is a job with [job] task = {}, and only task = infer continues prompts: name the "
                            "folder of its run, or such a job",
                            command, path.native(), task == nullptr ? "train" : task->value));
  }
  const auto is_given = [&](const std::string& setting) {
    const std::size_t dot = setting.find('.');
    const job::RawSection* const section = file.find(setting.substr(0, dot));
    return (section != nullptr && section->find(setting.substr(dot + 1)) != nullptr) ||
           std::ranges::any_of(overrides, [&](const std::string& each) { return each.starts_with(setting + "="); });
  };
  for (const auto& [setting, value] : defaults) {
    if (!is_given(setting)) {
      set(setting, value);
    }
  }
  job::RawJob raw = is_job ? job::read_job_file(path, overrides) : job_of_weights(parsed, command, path, overrides);
  for (const auto& [option, setting] : settings) {
    if (parsed.has(option)) {
      name_as(raw, setting, fmt::format("--{}", option));
    }
  }
  if (parsed.has("context")) {
    name_as(raw, context_setting, "--context");
  }
  return raw;
}

void require_generating(const checkpoint::TrainedModel& trained, const std::string& path) {
  if (!trained.model.decode) {
    throw Error(ErrorCode::usage,
                fmt::format("model {} has no function decode (shardrun/model.h, since 1.9), which reads prompts and "
                            "continues them in a job: its author has to add it",
                            trained.model.name));
  }
  if (trained.tokenizer && trained.settings.options.has("vocab") &&
      trained.tokenizer->vocabulary() > trained.settings.options.integer("vocab")) {
    throw Error(
        ErrorCode::data,
        fmt::format("'{}': the tokenizer has {} tokens, and the model has room for {}: they do not belong together",
                    path, trained.tokenizer->vocabulary(), trained.settings.options.integer("vocab")));
  }
}

EventJob::EventJob(const Parsed& parsed, const std::string& command,
                   std::vector<std::pair<std::string, std::string>> defaults)
    : folder_(fmt::format("shardrun-{}", command), "the job's records") {
  defaults.insert(defaults.end(),
                  {{"infer.from", "-"}, {"infer.to", "-"}, {"infer.events", "true"}, {"job.threads", "1"}});
  job::Job job = checked_job(parsed, generating_job(parsed, command, defaults));
  job.output = folder_.path() / "run";
  if (!job::generates(job) || !job.infer.events || !job::is_standard(job.infer.from) ||
      !job::is_standard(job.infer.to) || job.checkpoint.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("{}: '{}' is no job that continues prompts: it needs [job] task = infer and weights, and "
                            "[infer] from = -, to = - and events = true, or none of these three",
                            command, parsed.positional[0]));
  }
  const workload::Models models = compile::models_in(compile::directories_of(job.plugins.path));
  const checkpoint::GivenWeights given(job.checkpoint, models);
  const checkpoint::TrainedModel trained = checkpoint::read_model(given.source(), models);
  require_generating(trained, job.checkpoint.string());
  language_.emplace(trained.tokenizer, given.is_hub() ? job.checkpoint : std::filesystem::path());
  given.check();
  job = run::with_fitting_ranks(job, job.ranks);
  // A job that cannot run is refused here, before anything listens or starts.
  const run::Prepared prepared =
      run::prepare(job, {.ranks_here = job.ranks, .processes = run::runs_here(job) ? 0 : job.ranks, .replaces = true});
  const std::filesystem::path file = folder_.path() / "job.ini";
  std::ofstream(file) << job::canonical_text(job);
  words_ = {"run", file.string(), "--replace", "--launch", "here"};
  if (job.infer.slots == 0) {  // so that the job does not search for their number again
    words_.insert(words_.end(), {"--set", fmt::format("infer.slots={}", prepared.compiled.slots)});
  }
}

}  // namespace shardrun::cli
