#include "core/job/section.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/job/schema.h"
#include "core/options/convert.h"

namespace shardrun::job {
namespace {

[[noreturn]] void refuse_unknown(const SectionReader& reader, const RawSetting& setting) {
  std::vector<std::string> known;
  for (const OptionSpec& spec : reader.specs) {
    known.push_back(spec.name);
  }
  const std::string hint = hint_for_key(reader.name, setting.key, reader.specs, reader.elsewhere());
  throw Error(ErrorCode::job,
              fmt::format("{}: {} has no key '{}'{}; it has {}", setting.where, reader.owner, shown(setting.key), hint,
                          known.empty() ? std::string("none") : fmt::format("{}", fmt::join(known, ", "))));
}

void check_known(const SectionReader& reader, const RawSection& section) {
  for (const RawSetting& setting : section.settings) {
    const bool known = std::any_of(reader.specs.begin(), reader.specs.end(),
                                   [&](const OptionSpec& spec) { return spec.name == setting.key; });
    if (!known) {
      refuse_unknown(reader, setting);
    }
  }
}

}  // namespace

void check_declared(std::string_view owner, const std::vector<OptionSpec>& specs) {
  const auto wrong = [&](const OptionSpec& spec, std::string_view why) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} declares the option '{}' wrongly: {}", owner, shown(spec.name), why));
  };
  for (auto spec = specs.begin(); spec != specs.end(); ++spec) {
    if (!is_name(spec->name)) {
      wrong(*spec, "a name is made of a-z, 0-9 and _, and begins with a letter");
    }
    if (std::any_of(specs.begin(), spec, [&](const OptionSpec& other) { return other.name == spec->name; })) {
      wrong(*spec, "there are two of that name");
    }
    if (!spec->default_value) {
      continue;
    }
    try {
      (void)convert(*spec, *spec->default_value, {"its default", spec->name}, {});
    } catch (const Error& error) {
      wrong(*spec, error.message());
    }
  }
}

void refuse_missing(const SectionReader& reader, const RawSection* section, const OptionSpec& spec) {
  throw Error(ErrorCode::job, fmt::format("{}: {} needs the key '{}', which is missing; write {} = ... under [{}] ({})",
                                          section != nullptr ? section->where : reader.file, reader.owner, spec.name,
                                          spec.name, reader.name, accepted(spec)));
}

OptionValues read_section(const SectionReader& reader, const RawSection* section) {
  if (section != nullptr) {
    check_known(reader, *section);
  }
  OptionValues values;
  for (const OptionSpec& spec : reader.specs) {
    const RawSetting* const given = section != nullptr ? section->find(spec.name) : nullptr;
    const std::string name = setting_name(reader.name, spec.name);
    const auto folder = reader.folder ? reader.folder(spec, given) : std::filesystem::path();
    const auto add = [&](std::string_view text, const std::string& where) {
      values.set(spec.name, convert(spec, text, {where, name}, folder));
    };
    if (given != nullptr) {
      add(given->value, given->where);
    } else if (spec.default_value) {
      add(*spec.default_value, reader.file + " (default)");
    } else if (!spec.optional && reader.required) {
      refuse_missing(reader, section, spec);
    }
  }
  return values;
}

OptionValues make_options(const std::vector<OptionSpec>& specs, std::initializer_list<WrittenSetting> settings) {
  return make_options(specs, std::span<const WrittenSetting>(settings.begin(), settings.size()));
}

OptionValues make_options(const std::vector<OptionSpec>& specs, std::span<const WrittenSetting> settings) {
  RawSection section = {"options", "options", {}};
  for (const auto& [key, value] : settings) {
    section.settings.push_back({std::string(key), std::string(value), fmt::format("option {}", key)});
  }
  return read_section({.file = "options", .name = "options", .owner = "[options]", .specs = specs}, &section);
}

}  // namespace shardrun::job
