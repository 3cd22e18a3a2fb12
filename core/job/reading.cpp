#include "core/job/reading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/job/declared_sections.h"
#include "core/job/schema.h"
#include "core/job/section.h"
#include "core/options/convert.h"

namespace shardrun::job {
namespace {

std::string where(const Job& job, const KeyName& name) {
  return job.is_given(name.section, name.key) ? job.where(name.section, name.key) : "the default";
}

void check_order(const Job& job, const OrderRule& rule, const std::vector<EffectiveSetting>& settings) {
  const EffectiveSetting* const smaller = find_effective(settings, rule.smaller);
  const EffectiveSetting* const larger = find_effective(settings, rule.larger);
  if (smaller == nullptr || larger == nullptr || smaller->value <= larger->value) {
    return;
  }
  const bool given = job.is_given(rule.smaller.section, rule.smaller.key);
  throw Error(ErrorCode::job,
              fmt::format("{}: {} = {} is more than {} = {} ({}); lower the one or raise the other",
                          where(job, given ? rule.smaller : rule.larger), to_string(rule.smaller), smaller->text,
                          to_string(rule.larger), larger->text, where(job, given ? rule.larger : rule.smaller)));
}

void check_effect(const Job& job, const EffectRule& rule, const std::vector<EffectiveSetting>& settings) {
  if (!job.is_given(rule.key.section, rule.key.key) || (rule.of_models && !job.engine.name.empty())) {
    return;
  }
  const std::string name = to_string(rule.key);
  const std::string other = to_string(rule.other);
  if (!rule.value) {
    if (!job.is_given(rule.other.section, rule.other.key)) {
      throw Error(ErrorCode::job, fmt::format("{}: {} has no effect without {}; remove it, or set {}",
                                              where(job, rule.key), name, other, other));
    }
    return;
  }
  const EffectiveSetting* const found = find_effective(settings, rule.other);
  if (found != nullptr && found->text == *rule.value && find_effective(settings, rule.key)->text != rule.harmless) {
    const std::string harmless = rule.harmless ? fmt::format(" or set it to {0} (--set {1}.{2}={0})", *rule.harmless,
                                                             rule.key.section, rule.key.key)
                                               : "";
    throw Error(ErrorCode::job,
                fmt::format("{}: {} has no effect with {} = {} ({}); remove it{}, or change {}", where(job, rule.key),
                            name, other, found->text, where(job, rule.other), harmless, other));
  }
}

void check_exclusive(const Job& job, const KeysOfSection& rule) {
  std::vector<KeyName> given;
  for (const std::string& key : rule.keys) {
    if (job.is_given(rule.section, key)) {
      given.push_back({rule.section, key});
    }
  }
  if (given.size() > 1) {
    throw Error(ErrorCode::job, fmt::format("{}: {} is given beside {} ({}); keep at most one of {}",
                                            where(job, given[1]), to_string(given[1]), to_string(given[0]),
                                            where(job, given[0]), fmt::join(rule.keys, ", ")));
  }
}

void check_content(const Job& job, const KeysOfSection& rule) {
  const bool has_one = std::ranges::any_of(rule.keys, [&](const auto& key) { return job.is_given(rule.section, key); });
  if (!has_one && job.is_given(rule.section, "")) {
    throw Error(ErrorCode::job, fmt::format("{}: [{}] needs one of the keys {}; write it, or remove the section",
                                            job.where(rule.section, ""), rule.section, fmt::join(rule.keys, ", ")));
  }
}

std::string any_of_text(const std::vector<KeyName>& names) {
  std::vector<std::string> texts;
  std::ranges::transform(names, std::back_inserter(texts), [](const KeyName& name) { return to_string(name); });
  return fmt::format("{}", fmt::join(texts, " or "));
}

void check_need(const Job& job, const NeedRule& rule) {
  const bool has_one =
      std::ranges::any_of(rule.others, [&](const KeyName& other) { return job.is_given(other.section, other.key); });
  if (job.is_given(rule.key.section, rule.key.key) && !has_one) {
    throw Error(ErrorCode::job, fmt::format("{}: {} needs {}, which is missing; write it too", where(job, rule.key),
                                            to_string(rule.key), any_of_text(rule.others)));
  }
}

void check_of_models(const Job& job) {
  if (job.task == Task::iterate && job.is_given("data", "")) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [data] has no effect on an engine that is iterated ([job] engine = {}, {}); "
                            "remove it",
                            where(job, {"data", ""}), job.engine.name, where(job, {"job", "engine"})));
  }
  for (const KeyName& name : rules().of_models) {
    const bool is_saved = name.section == "checkpoint" && job.task == Task::iterate;  // the engine's states are saved
    if (!is_saved && job.is_given(name.section, name.key)) {
      throw Error(ErrorCode::job,
                  fmt::format("{}: {} has no effect with [job] engine = {} ({}); remove it", where(job, name),
                              name.key.empty() ? fmt::format("[{}]", name.section) : to_string(name), job.engine.name,
                              where(job, {"job", "engine"})));
    }
  }
}

/// The folder to which a relative path in the setting refers.
const std::filesystem::path& folder_of(const Reading& reading, std::string_view section, std::string_view key,
                                       const RawSetting* setting) {
  const bool of_schema = !section.starts_with(transport_prefix) && section_of_axis(section) == nullptr;
  const Setting* const setting_of_schema = of_schema ? find_setting(section_named(section), key) : nullptr;
  if (setting_of_schema != nullptr && setting_of_schema->from_working_folder) {
    return reading.raw.working_folder;
  }
  return setting != nullptr ? setting->folder : reading.raw.job_folder;
}

/// The keys that the job's sections can have, for an error about a key in the wrong section.
std::vector<KnownKeys> all_keys(const Reading& reading) {
  std::vector<KnownKeys> all = known_keys();
  if (reading.providers == nullptr) {
    return all;
  }
  try {
    Job plugins_only;
    plugins_only.plugins.path = plugin_path(reading.raw);
    const RawSection* const model = reading.raw.find("model");
    if (const RawSetting* const name = model != nullptr ? model->find("name") : nullptr) {
      if (const auto options = reading.providers->model_options(name->value, plugins_only)) {
        all.push_back({"model", *options});
      }
    }
    const RawSection* const section = reading.raw.find("job");
    const RawSetting* const name = section != nullptr ? section->find("strategy") : nullptr;
    const std::string& strategy =
        name != nullptr ? name->value : *find_setting(section_named("job"), "strategy")->spec.default_value;
    if (const auto options = reading.providers->strategy_options(strategy, plugins_only)) {
      all.push_back({"strategy", *options});
    }
  } catch (const Error&) {
    // Ignored, because the message is about another error.
  }
  return all;
}

void remember(Reading& reading, const std::string& section, const RawSection* given,
              const std::vector<OptionSpec>& specs, const OptionValues& values) {
  if (given != nullptr) {
    reading.job.given.push_back({section, "", "", given->where});
  }
  for (const OptionValues::Entry& entry : values.entries()) {
    const auto spec =
        std::find_if(specs.begin(), specs.end(), [&](const OptionSpec& other) { return other.name == entry.name; });
    const std::string text = to_text(*spec, entry.value);
    reading.settings.push_back({section, entry.name, entry.value, text});
    if (const RawSetting* const setting = given != nullptr ? given->find(entry.name) : nullptr) {
      reading.job.given.push_back({section, entry.name, text, setting->where});
    }
  }
}

}  // namespace

const EffectiveSetting* find_effective(const std::vector<EffectiveSetting>& settings, const KeyName& name) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](const EffectiveSetting& setting) {
    return setting.section == name.section && setting.key == name.key;
  });
  return found == settings.end() ? nullptr : &*found;
}

void check_rules(const Job& job, const std::vector<EffectiveSetting>& settings) {
  if (!job.engine.name.empty()) {
    check_of_models(job);
  }
  for (const KeysOfSection& rule : rules().exclusive) {
    check_exclusive(job, rule);
  }
  for (const KeysOfSection& rule : rules().content) {
    check_content(job, rule);
  }
  for (const NeedRule& rule : rules().need) {
    check_need(job, rule);
  }
  for (const EffectRule& rule : rules().effect) {
    check_effect(job, rule, settings);
  }
  for (const OrderRule& rule : rules().order) {
    check_order(job, rule, settings);
  }
}

std::int64_t places_of_mesh(const Job& job) {
  std::int64_t product = 1;
  for (const MeshAxis& axis : job.mesh) {
    if (__builtin_mul_overflow(product, axis.size, &product)) {
      throw Error(ErrorCode::job,
                  fmt::format("{}: the product of the mesh up to axis {} is too large for a 64-bit integer; it must be "
                              "[job] ranks",
                              job.where("mesh", axis.name), shown(axis.name)));
    }
  }
  return product;
}

void check_mesh(const Job& job) {
  if (job.mesh.empty()) {
    return;
  }
  const std::int64_t product = places_of_mesh(job);
  if (product == job.ranks) {
    return;
  }
  std::vector<std::string> sizes;
  for (const MeshAxis& axis : job.mesh) {
    sizes.push_back(fmt::format("{} {}", shown(axis.name), axis.size));
  }
  throw Error(ErrorCode::job,
              fmt::format("{}: the mesh ({}) has {} places for [job] ranks = {} ({}); make the product of its sizes "
                          "equal to ranks, or set ranks = auto, which is that product",
                          job.where("mesh", ""), shown(fmt::format("{}", fmt::join(sizes, ", "))), product, job.ranks,
                          where(job, {"job", "ranks"})));
}

OptionValues read_settings(Reading& reading, const std::string& section, const std::string& owner,
                           const std::vector<OptionSpec>& specs, bool required) {
  const RawSection* const given = reading.raw.find(section);
  const SectionReader reader = {
      .file = reading.raw.file,
      .name = section,
      .owner = owner,
      .specs = specs,
      .required = required,
      .folder = [&](const OptionSpec& spec, const RawSetting* setting) -> const std::filesystem::path& {
        return folder_of(reading, section, spec.name, setting);
      },
      .elsewhere = [&] { return all_keys(reading); }};
  OptionValues values = read_section(reader, given);
  remember(reading, section, given, specs, values);
  return values;
}

void set_ranks(Reading& reading, std::int64_t ranks) {
  reading.job.ranks = ranks;
  const std::string text = fmt::format("{}", ranks);
  for (GivenSetting& setting : reading.job.given) {
    if (setting.section == "job" && setting.key == "ranks") {
      setting.value = text;
    }
  }
  for (EffectiveSetting& setting : reading.settings) {
    if (setting.section == "job" && setting.key == "ranks") {
      setting.value = reading.job.ranks;
      setting.text = text;
    }
  }
}

}  // namespace shardrun::job
