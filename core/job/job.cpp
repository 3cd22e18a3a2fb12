#include "core/job/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/job/ini.h"

namespace shardrun::job {
namespace {

const GivenSetting* find(const Job& job, std::string_view section, std::string_view key) noexcept {
  const auto found = std::find_if(job.given.begin(), job.given.end(), [&](const GivenSetting& setting) {
    return setting.section == section && setting.key == key;
  });
  return found == job.given.end() ? nullptr : &*found;
}

}  // namespace

std::string Job::where(std::string_view section, std::string_view key) const {
  const GivenSetting* const setting = find(*this, section, key);
  if (setting != nullptr) {
    return setting->where;
  }
  return key.empty() ? file : file + " (default)";
}

bool Job::is_given(std::string_view section, std::string_view key) const {
  return find(*this, section, key) != nullptr;
}

std::string canonical_text(const Job& job) {
  std::string text = fmt::format("[job]\noutput = {}\n", write_value(job.output.string()));
  for (const GivenSetting& setting : job.given) {
    const bool written = setting.section == "job" && (setting.key.empty() || setting.key == "output");
    if (written) {
      continue;
    }
    if (setting.key.empty()) {
      text += fmt::format("\n[{}]\n", setting.section);
    } else {
      text += fmt::format("{} = {}\n", setting.key, write_value(setting.value));
    }
  }
  return text;
}

}  // namespace shardrun::job
