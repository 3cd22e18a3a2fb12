#include "core/job/reading.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/job/declared_sections.h"
#include "core/job/section.h"
#include "core/options/convert.h"

namespace shardrun::job {
namespace {

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

/// The keys that the job's sections may have, for an error about a key in the wrong section.
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
