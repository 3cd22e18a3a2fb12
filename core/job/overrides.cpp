#include "core/job/overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/base/error.h"
#include "core/job/text.h"

namespace shardrun::job {
namespace {

struct Override {
  std::string_view section;
  std::string_view key;
  std::string_view value;
};

/// The section whose keys are names of tensors.
constexpr std::string_view names_section = "sharding.";

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw Error(ErrorCode::usage, fmt::format("--set {}: {}", shown(text), why));
}

Override parse_override(std::string_view text) {
  if (text.size() > max_line_bytes) {
    refuse(text, fmt::format("is longer than the {} bytes that are allowed", max_line_bytes));
  }
  if (invalid_utf8(text) != std::string_view::npos || control_character(text) != std::string_view::npos) {
    refuse(text, "has a control character or bytes that are not UTF-8; a job file could not hold it");
  }
  const std::size_t equals = text.find('=');
  // Section names contain dots, keys do not, except for names of tensors.
  const std::string_view name = text.substr(0, equals);
  const std::size_t dot = trimmed(name).starts_with(names_section) ? name.find('.') : name.rfind('.');
  if (equals == std::string_view::npos || dot == std::string_view::npos) {
    refuse(text, "is not of the form section.key=value, as in --set train.steps=100");
  }
  const Override result = {trimmed(text.substr(0, dot)), trimmed(text.substr(dot + 1, equals - dot - 1)),
                           trimmed(text.substr(equals + 1))};
  if (result.section.empty() || result.key.empty()) {
    refuse(text, "names no section or no key; write section.key=value, as in --set train.steps=100");
  }
  return result;
}

RawSection& section_to_set(RawJob& raw, std::string_view name, const std::string& where) {
  const auto found =
      std::find_if(raw.sections.begin(), raw.sections.end(), [&](const auto& section) { return section.name == name; });
  return found != raw.sections.end() ? *found : raw.sections.emplace_back(RawSection{std::string(name), where, {}});
}

}  // namespace

void apply_overrides(RawJob& raw, std::span<const std::string> overrides) {
  for (const std::string& text : overrides) {
    const Override override_ = parse_override(text);
    const std::string where = fmt::format("--set {}.{}", shown(override_.section), shown(override_.key));
    RawSection& section = section_to_set(raw, override_.section, where);
    const auto found = std::find_if(section.settings.begin(), section.settings.end(),
                                    [&](const auto& setting) { return setting.key == override_.key; });
    RawSetting setting = {std::string(override_.key), std::string(override_.value), where, true, raw.working_folder};
    if (found == section.settings.end()) {
      section.settings.push_back(std::move(setting));
    } else if (found->from_override) {
      refuse(text, "the same key is set twice on the command line; keep one of them");
    } else {
      *found = std::move(setting);
    }
  }
}

}  // namespace shardrun::job
