#include "core/launch/job_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace shardrun::launch {
namespace {

/// A `key = value` line, or a section's header, which has no key of its own.
struct Setting {
  std::string_view section;  ///< "[train]"; empty before the first section
  std::string_view key;      ///< the whole line if it has no " = "
  std::string_view value;
};

std::vector<Setting> settings_in(std::string_view text) {
  constexpr std::string_view assigns = " = ";
  std::vector<Setting> settings;
  std::string_view section;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.starts_with('[')) {
      section = line;
      settings.push_back({section, "", ""});
    } else if (!line.empty()) {
      const std::size_t end = std::min(line.find(assigns), line.size());
      settings.push_back({section, line.substr(0, end), line.substr(std::min(end + assigns.size(), line.size()))});
    }
  }
  return settings;
}

const Setting* find(const std::vector<Setting>& settings, const Setting& same) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](const Setting& each) {
    return each.section == same.section && each.key == same.key;
  });
  return found == settings.end() ? nullptr : &*found;
}

std::string name_of(const Setting& setting) {
  const std::string_view between = setting.section.empty() || setting.key.empty() ? "" : " ";
  return fmt::format("{}{}{}", setting.section, between, setting.key);
}

std::string only(const Setting& setting, std::string_view where, std::string_view elsewhere) {
  const std::string_view assigns = setting.value.empty() ? "" : " = ";
  return fmt::format("{}{}{} {}, not {}", name_of(setting), assigns, setting.value, where, elsewhere);
}

}  // namespace

std::string first_difference(std::string_view here, std::string_view there) {
  const std::vector<Setting> ours = settings_in(here);
  const std::vector<Setting> theirs = settings_in(there);
  for (const Setting& setting : ours) {
    const Setting* const other = find(theirs, setting);
    if (other == nullptr) {
      return only(setting, "here", "there");
    }
    if (other->value != setting.value) {
      return fmt::format("{} = {} here, {} there", name_of(setting), setting.value, other->value);
    }
  }
  for (const Setting& setting : theirs) {
    if (find(ours, setting) == nullptr) {
      return only(setting, "there", "here");
    }
  }
  return here == there ? "" : "the order of their lines";
}

}  // namespace shardrun::launch
