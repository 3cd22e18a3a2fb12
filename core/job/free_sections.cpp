#include "core/job/free_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/job/schema.h"
#include "core/options/convert.h"

namespace shardrun::job {
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

}  // namespace shardrun::job
