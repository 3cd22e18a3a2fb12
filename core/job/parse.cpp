#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/endpoint.h"
#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/text.h"
#include "core/files/gguf.h"
#include "core/job/declared_sections.h"
#include "core/job/hints.h"
#include "core/job/job.h"
#include "core/job/output.h"
#include "core/job/reading.h"
#include "core/options/convert.h"

namespace shardrun::job {
namespace {

// Sections whose keys are names that the job file makes up or the strategy knows. Each function throws Error{job} if
// the section exists but is empty, or if a line is malformed.

/// Reads [mesh] order. Whether it is a permutation is checked later, when the number of ranks is known.
void read_order(const RawSetting& setting, Job& job) {
  const SettingPlace place = {setting.where, setting_name("mesh", setting.key)};
  job.is_order_chosen = setting.value == "topology";
  if (!job.is_order_chosen) {
    const OptionSpec numbers = {.name = setting.key, .type = OptionType::text_list};
    const OptionValue ranks = convert(numbers, setting.value, place, {});
    for (const std::string& text : std::get<std::vector<std::string>>(ranks)) {
      const OptionSpec rank = {.name = setting.key, .type = OptionType::integer, .minimum = 0};
      job.mesh_order.push_back(std::get<std::int64_t>(convert(rank, text, place, {})));
    }
  }
  job.given.push_back({"mesh", setting.key, setting.value, setting.where});
}

void check_rank_order(const Job& job) {
  std::vector<std::int64_t> sorted = job.mesh_order;
  std::ranges::sort(sorted);
  bool is_permutation = sorted.empty() || static_cast<std::int64_t>(sorted.size()) == job.ranks;
  for (std::size_t i = 0; is_permutation && i < sorted.size(); ++i) {
    is_permutation = sorted[i] == static_cast<std::int64_t>(i);
  }
  if (!is_permutation) {
    refuse_at(job.where("mesh", "order"),
              fmt::format("[mesh] order: expected each rank from 0 to {} once, the rank at each place of the mesh, of "
                          "which the last axis changes fastest; found {}; or write topology",
                          job.ranks - 1, counted(static_cast<std::int64_t>(sorted.size()), "number")));
  }
}

void check_slots(const Job& job) {
  if (generates(job) && job.infer.slots == 0 && job.cluster.memory == 0) {
    refuse_at(
        job.where("infer", "slots"),
        "slots = auto takes what [cluster] memory leaves, and the job does not say how much memory a rank has: set "
        "[cluster] memory, such as 8GiB (--set cluster.memory=8GiB), or slots to a number");
  }
}

void read_mesh(const RawJob& raw, Job& job) {
  const RawSection* const given = raw.find("mesh");
  if (given == nullptr) {
    return;
  }
  if (given->settings.empty()) {
    refuse_at(given->where, "[mesh] has no axis; write axis = size under it, or remove the section");
  }
  job.given.push_back({"mesh", "", "", given->where});
  for (const RawSetting& setting : given->settings) {
    if (setting.key == "order") {
      read_order(setting, job);
      continue;
    }
    if (!is_name(setting.key)) {
      refuse_at(setting.where, fmt::format("'{}' cannot name a mesh axis; a name is made of a-z, 0-9 and _, and begins "
                                           "with a letter",
                                           shown(setting.key)));
    }
    const OptionSpec spec = {.name = setting.key, .type = OptionType::integer, .minimum = 1};
    const SettingPlace place = {setting.where, setting_name("mesh", shown(setting.key))};
    const OptionValue size = convert(spec, setting.value, place, {});
    job.mesh.push_back({setting.key, std::get<std::int64_t>(size)});
    job.given.push_back({"mesh", setting.key, to_text(spec, size), setting.where});
  }
}

/// Reads [sharding]. Checks only its form, because the strategy knows what the lines mean.
void read_sharding(const RawJob& raw, Job& job) {
  const RawSection* const given = raw.find("sharding");
  if (given == nullptr) {
    return;
  }
  if (given->settings.empty()) {
    refuse_at(given->where, "[sharding] has no line; write what = where under it, or remove the section");
  }
  job.given.push_back({"sharding", "", "", given->where});
  for (const RawSetting& setting : given->settings) {
    const bool plain = std::all_of(setting.key.begin(), setting.key.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             std::string_view("_./*?-@ ").find(c) != std::string_view::npos;
    });
    if (!plain) {
      refuse_at(setting.where, fmt::format("'{}' cannot be the name of anything that is placed; a name is made of "
                                           "letters, digits and _ . / -, with * and ? for what may be anything",
                                           shown(setting.key)));
    }
    job.sharding.push_back({setting.key, setting.value});
    job.given.push_back({"sharding", setting.key, setting.value, setting.where});
  }
}

/// Reads [transport]. Does not compare its axes with the mesh, because only the strategy's plan has all axes.
void read_axis_transports(const RawJob& raw, Job& job) {
  const RawSection* const given = raw.find("transport");
  if (given == nullptr) {
    return;
  }
  if (given->settings.empty()) {
    refuse_at(given->where, "[transport] has no axis; write axis = transport under it, or remove the section");
  }
  job.given.push_back({"transport", "", "", given->where});
  for (const RawSetting& setting : given->settings) {
    job.axis_transports.push_back({setting.key, setting.value});
    job.given.push_back({"transport", setting.key, setting.value, setting.where});
  }
}

void check_section_names(const RawJob& raw) {
  std::vector<std::string> names;
  for (const Section& section : schema()) {
    names.push_back(section.name);
  }
  for (const RawSection& section : raw.sections) {
    if (!section.name.starts_with(transport_prefix) && section_of_axis(section.name) == nullptr &&
        std::find(names.begin(), names.end(), section.name) == names.end()) {
      refuse_at(section.where, fmt::format("there is no section [{}]{}; the sections are {}", shown(section.name),
                                           hint_for_section(section.name), fmt::join(names, ", ")));
    }
  }
}

/// REQUIRES: [job] has been read.
const std::string& task_of(const Reading& reading) { return find_effective(reading.settings, {"job", "task"})->text; }

bool is_of_task(const Reading& reading, const Section& section) {
  return section.tasks.empty() || std::ranges::find(section.tasks, task_of(reading)) != section.tasks.end();
}

/// Reads a section whose keys are all in the schema.
void read_fixed(Reading& reading, const Section& section) {
  std::vector<OptionSpec> specs;
  for (const Setting& setting : section.settings) {
    specs.push_back(setting.spec);
  }
  const bool required = is_of_task(reading, section);
  const OptionValues values = read_settings(reading, section.name, fmt::format("[{}]", section.name), specs, required);
  for (const OptionValues::Entry& entry : values.entries()) {
    const Setting* const setting = find_setting(section, entry.name);
    setting->store(reading.job, setting->spec, entry.value);
  }
}

void check_task(const Reading& reading, const Section& section) {
  const RawSection* const given = reading.raw.find(section.name);
  if (given == nullptr || is_of_task(reading, section)) {
    return;
  }
  refuse_at(given->where,
            fmt::format("[{}] has no effect with [job] task = {} ({}); remove the section, or set [job] task = {}",
                        section.name, task_of(reading),
                        reading.job.is_given("job", "task") ? reading.job.where("job", "task") : "the default",
                        fmt::join(section.tasks, " or ")));
}

/// Resolves `ranks = auto`: the number of places in the mesh or, without a mesh, the number that fits here. If ranks is
/// a range, takes the number in the range that is nearest to this one.
void resolve_ranks(Reading& reading) {
  Job& job = reading.job;
  if (job.ranks != 0) {
    return;
  }
  const std::int64_t ranks = job.mesh.empty() ? reading.providers->automatic_ranks(job) : places_of_mesh(job);
  set_ranks(reading, job.elastic_ranks ? std::clamp(ranks, job.elastic_ranks->least, job.elastic_ranks->most) : ranks);
}

/// Reads the axes of [cluster]. They cannot be compared with the mesh before the strategy has named its axes.
void read_cluster_axes(Reading& reading) {
  Job& job = reading.job;
  const Section& cluster = section_named("cluster");
  for (const RawSection& given : reading.raw.sections) {
    if (section_of_axis(given.name) != &cluster) {
      continue;
    }
    if (reading.raw.find(cluster.name) == nullptr) {
      refuse_at(given.where, fmt::format("[{}] has no effect without [{}]; remove it, or write [{}] too",
                                         shown(given.name), cluster.name, cluster.name));
    }
    if (!job.is_given("cluster", "flops") && !job.is_given("cluster", "measured")) {
      refuse_at(given.where,
                fmt::format("[{}] has no effect without [cluster] flops or measured; remove it, or set one",
                            shown(given.name)));
    }
    const OptionValues values =
        read_settings(reading, given.name, fmt::format("[{}]", shown(given.name)), cluster.of_axis, true);
    job.cluster.axes.push_back({given.name.substr(cluster.name.size() + 1), values.real("bandwidth"),
                                values.has("latency") ? values.real("latency") : job.cluster.latency});
  }
  if (job.is_given("cluster", "latency") && job.cluster.bandwidth == 0 && job.cluster.axes.empty()) {
    refuse_at(job.where("cluster", "latency"),
              "[cluster] latency has no effect without a bandwidth; remove it, or set [cluster] bandwidth");
  }
}

/// Reads [model], or [engine] and, if it is given, [model]. In a job with an engine, [strategy] and [sharding] are only
/// noted, so that check_rules() refuses them.
void read_model_or_engine(Reading& reading, const Section& section) {
  const Job& job = reading.job;
  if (job.engine.name.empty()) {
    if (const RawSection* const given = reading.raw.find("engine")) {
      refuse_at(given->where, "[engine] has no effect without [job] engine; remove it, or set [job] engine");
    }
    if (const RawSection* const given = reading.raw.find("checkpoint"); job.task == Task::infer && given != nullptr) {
      refuse_at(given->where, "[checkpoint] has no effect with [job] task = infer, which saves nothing; remove it");
    }
    if (job.task != Task::infer && job.is_given("job", "checkpoint")) {
      refuse_at(job.where("job", "checkpoint"),
                "[job] checkpoint has no effect without [job] engine or task = infer; remove it, or set one of them");
    }
    read_model(reading, section);
    return;
  }
  if (job.task == Task::iterate && job.is_given("job", "checkpoint")) {
    refuse_at(job.where("job", "checkpoint"),
              "[job] checkpoint has no effect on an engine that is iterated; remove it, or go on from a checkpoint of "
              "its states with --resume");
  }
  if (reading.raw.find(section.name) != nullptr) {
    read_model(reading, section);
  }
  for (const char* const unread : {"strategy", "sharding"}) {
    if (const RawSection* const given = reading.raw.find(unread)) {
      reading.job.given.push_back({unread, "", "", given->where});
    }
  }
  read_engine(reading);
}

/// The checkpoint from which the job goes on; empty: it begins anew. Reads only the sections that say so.
std::filesystem::path checkpoint_to_resume(const RawJob& raw, const SchemaProviders& providers) {
  Reading reading{.raw = raw, .providers = &providers};
  Job& job = reading.job;
  job.file = raw.file;
  job.name = raw.name;
  read_fixed(reading, section_named("job"));
  read_fixed(reading, section_named("checkpoint"));
  job.checkpoints.used = job.is_given("checkpoint", "");
  choose_output(raw, job);
  return providers.checkpoint_to_resume(job);
}

/// Whether [model] names its model and has all options that the model requires, as in the job file of a run.
bool has_required_options(const RawSection& model, const SchemaProviders& providers, const Job& plugins_only) {
  try {
    const RawSetting* const name = model.find("name");
    const auto options = name != nullptr ? providers.model_options(name->value, plugins_only) : std::nullopt;
    return options && std::ranges::all_of(*options, [&](const OptionSpec& spec) {
             return spec.optional || spec.default_value || model.find(spec.name) != nullptr;
           });
  } catch (const Error&) {
    return true;  // read_model() reports a model that cannot be opened
  }
}

/// checkpoint_to_resume() for a job whose weights are not there. `is_whole`: the job has all settings of its model, so
/// that it can be read without a checkpoint. The result is then empty if [checkpoint] is wrong, which the run reports.
/// If not `is_whole`, throws Error{job} if [checkpoint] is wrong, or if the run can have used the weights' tokenizer.
std::filesystem::path checkpoint_without_weights(const RawJob& raw, const SchemaProviders& providers, bool is_whole) {
  std::filesystem::path resumed;
  try {
    resumed = checkpoint_to_resume(raw, providers);
  } catch (const Error&) {
    if (!is_whole) {
      throw;
    }
  }
  const RawSection* const data = raw.find("data");
  if (!resumed.empty() && !is_whole && data != nullptr && data->find("text") != nullptr &&
      data->find("tokenizer") == nullptr) {
    const RawSetting& from = *raw.find("model")->find("from");
    refuse_at(from.where, fmt::format("[model] from: '{}' is not there, and the run may have made tokens of its text "
                                      "with the tokenizer there: put it back, or set [data] tokenizer",
                                      (from.folder / from.value).lexically_normal().native()));
  }
  return resumed;
}

/// Completes a job from the weights that [model] from names: with the settings of [model] that the job lacks, and
/// with the weights' tokenizer. If the weights are not there, the checkpoint from which the job goes on provides
/// the settings.
RawJob with_model_of_weights(RawJob raw, const SchemaProviders& providers) {
  const auto section = std::ranges::find(raw.sections, "model", &RawSection::name);
  const RawSetting* const from = section == raw.sections.end() ? nullptr : section->find("from");
  if (from == nullptr || from->value.empty()) {
    return raw;
  }
  Job plugins_only;
  plugins_only.plugins.path = plugin_path(raw);
  const RawSetting* const name = section->find("name");
  const std::filesystem::path weights = (from->folder / from->value).lexically_normal();
  std::filesystem::path described = weights;
  if (!std::filesystem::exists(weights)) {
    const bool is_whole = has_required_options(*section, providers, plugins_only);
    if (const auto resumed = checkpoint_without_weights(raw, providers, is_whole); !resumed.empty()) {
      described = resumed;
    } else if (is_whole) {
      return raw;
    }
  }
  const RawSetting of_weights = *from;
  std::vector<RawSetting> found;
  try {
    found = providers.model_of_weights(described, plugins_only);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: [model] from: {}", of_weights.where, error.message()));
  }
  for (RawSetting& setting : found) {
    if (setting.key == "name" && name != nullptr && name->value != setting.value) {
      refuse_at(name->where, fmt::format("[model] name = {}, and '{}' holds the model {}: remove one of them",
                                         shown(name->value), described.native(), setting.value));
    }
    setting.where = of_weights.where;
    setting.folder = of_weights.folder;
  }
  for (RawSetting& setting : found) {
    if (section->find(setting.key) == nullptr) {
      section->settings.push_back(std::move(setting));
    }
  }
  const auto data = std::ranges::find(raw.sections, "data", &RawSection::name);
  if (data != raw.sections.end() && data->find("text") != nullptr && data->find("tokenizer") == nullptr &&
      (std::filesystem::exists(weights / "tokenizer.json") || files::is_gguf(weights))) {
    data->settings.push_back({.key = "tokenizer", .value = weights.native(), .where = of_weights.where});
  }
  return raw;
}

/// Chooses checks that cost next to nothing if the job chooses none. Throws Error{job} if its checks are contradictory.
void choose_checks(Reading& reading) {
  Job& job = reading.job;
  if (!job.is_given("job", "check")) {
    job.checks = {.states = job.device == "cpu" && job.task == Task::train, .replicas = job.task != Task::infer};
    return;
  }
  const std::string& text = find_effective(reading.settings, {"job", "check"})->text;
  const bool is_any = job.checks.states || job.checks.transfers || job.checks.replay || job.checks.replicas;
  if (is_any && text.find("none") != std::string::npos) {
    refuse_at(job.where("job", "check"), fmt::format("[job] check = {} names checks beside none; remove one", text));
  }
  if (job.task == Task::infer && (job.checks.states || job.checks.replay || job.checks.replicas)) {
    refuse_at(
        job.where("job", "check"),
        fmt::format("[job] check = {} has no effect with task = infer, which changes no states: only transfers can "
                    "be checked",
                    text));
  }
  const bool is_timed = job.checks.replicas || job.checks.replay;
  if (job.is_given("job", "check_every") && is_timed == (job.check_every < 0)) {
    refuse_at(job.where("job", "check_every"),
              fmt::format("[job] check_every = {} contradicts [job] check = {} ({}); remove one of them",
                          job.check_every, text, job.where("job", "check")));
  }
}

/// Uses all data if a model is iterated, because nothing is validated then.
void take_all_data(Job& job) {
  if (job.task != Task::iterate) {
    return;
  }
  job.data.split = 1;
  if (job.is_given("data", "") && !has_data(job)) {
    refuse_at(job.where("data", ""), "[data] names no data: give it text, tokens or arrays, or remove the section");
  }
}

}  // namespace

Job parse_job(const RawJob& given, const SchemaProviders& providers) {
  const RawJob raw = with_model_of_weights(given, providers);
  Reading reading{.raw = raw, .providers = &providers};
  Job& job = reading.job;
  job.file = raw.file;
  job.files = raw.files;
  job.name = raw.name;
  check_section_names(raw);
  for (const Section& section : schema()) {
    check_task(reading, section);
    if (section.kind == SectionKind::mesh) {
      read_mesh(raw, job);
      resolve_ranks(reading);
    } else if (section.kind == SectionKind::model) {
      read_model_or_engine(reading, section);
    } else if (section.kind == SectionKind::fixed) {
      read_fixed(reading, section);
    }
  }
  job.checkpoints.used = job.is_given("checkpoint", "");
  take_all_data(job);
  if (job.task == Task::iterate && !job.weights.empty()) {
    refuse_at(job.where("model", "from"),
              "[model] from has no effect with [job] task = iterate; [iterate] from names the state to start from");
  }
  if (const std::string& at = job.metrics.prometheus; job.is_given("metrics", "prometheus") && !endpoint_of(at)) {
    refuse_at(job.where("metrics", "prometheus"),
              fmt::format("[metrics] prometheus: expected ADDRESS:PORT, [ADDRESS]:PORT or PORT, as in 127.0.0.1:9100; "
                          "found {}",
                          shown(at)));
  }
  if (generates(job) && job.is_given("infer", "batch")) {
    refuse_at(job.where("infer", "batch"),
              "[infer] batch has no effect with tokens above 0: slots is the number of prompts that are continued at "
              "once; remove it");
  }
  if (job.infer.events && (job.infer.writes_text || job.is_given("infer", "malformed"))) {
    const char* const key = job.infer.writes_text ? "text" : "malformed";
    refuse_at(job.where("infer", key),
              fmt::format("[infer] {} has no effect with events = true, which tells answers and malformed lines in "
                          "objects of their own; remove it",
                          key));
  }
  if (job.task == Task::infer && !job.weights.empty()) {
    if (!job.checkpoint.empty()) {
      refuse_at(job.where("job", "checkpoint"), "[job] checkpoint and [model] from both name weights; remove one");
    }
    job.checkpoint = job.weights;
  }
  read_cluster_axes(reading);
  choose_output(raw, job);
  check_mesh(job);
  check_rank_order(job);
  check_slots(job);
  check_rules(job, reading.settings);
  choose_checks(reading);
  read_sharding(raw, job);
  read_axis_transports(raw, job);
  if (job.engine.name.empty()) {
    read_strategy(reading);
  }
  read_transports(reading);
  return std::move(reading.job);
}

std::vector<std::filesystem::path> plugin_path(const RawJob& raw) {
  Reading reading{.raw = raw};
  read_fixed(reading, section_named("plugins"));
  return reading.job.plugins.path;
}

}  // namespace shardrun::job
