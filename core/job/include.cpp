#include "core/job/include.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/job/ini.h"
#include "core/job/source.h"
#include "core/options/convert.h"

namespace shardrun::job {
namespace {

/// Files that include others twice each would be read without end.
constexpr std::size_t most_files = 100;

void put(RawSection& section, RawSetting setting) {
  const auto same = std::find_if(section.settings.begin(), section.settings.end(),
                                 [&](const RawSetting& earlier) { return earlier.key == setting.key; });
  if (same == section.settings.end()) {
    section.settings.push_back(std::move(setting));
  } else {
    *same = std::move(setting);
  }
}

/// The settings of `later` replace those of `sections`.
void merge(std::vector<RawSection>& sections, std::vector<RawSection> later) {
  for (RawSection& section : later) {
    const auto same = std::find_if(sections.begin(), sections.end(),
                                   [&](const RawSection& earlier) { return earlier.name == section.name; });
    if (same == sections.end()) {
      sections.push_back(std::move(section));
      continue;
    }
    same->where = section.where;
    for (RawSetting& setting : section.settings) {
      put(*same, std::move(setting));
    }
  }
}

class Includer {
 public:
  explicit Includer(std::filesystem::path working_folder) : working_folder_(std::move(working_folder)) {}

  /// `file`: as messages name it.
  std::vector<RawSection> read(std::string_view text, const std::filesystem::path& file) {
    RawText own = parse_ini(text, escaped(file.string()));
    const std::filesystem::path folder = (working_folder_ / file).parent_path();
    for (RawSection& section : own.sections) {
      for (RawSetting& setting : section.settings) {
        setting.folder = folder;
      }
    }
    open_.push_back({working_folder_ / file, escaped(file.string())});
    read_.push_back(working_folder_ / file);
    std::vector<RawSection> sections;
    for (const RawInclude& include : own.includes) {
      merge(sections, read_included(include, normal_path(file.parent_path() / include.path)));
    }
    open_.pop_back();
    merge(sections, std::move(own.sections));
    return sections;
  }

  [[nodiscard]] const std::vector<std::filesystem::path>& files() const noexcept { return read_; }

 private:
  struct Open {
    std::filesystem::path path;
    std::string name;  ///< in messages
  };

  std::vector<RawSection> read_included(const RawInclude& include, const std::filesystem::path& file) {
    const auto refuse = [&](std::string_view why) {
      throw Error(ErrorCode::job, fmt::format("{}: include = {}: {}", include.where, shown(include.path), why));
    };
    const auto same = std::find_if(open_.begin(), open_.end(), [&](const Open& open) {
      std::error_code not_there;
      return std::filesystem::equivalent(open.path, working_folder_ / file, not_there);
    });
    if (same != open_.end()) {
      std::string chain = same->name;
      for (auto next = same + 1; next != open_.end(); ++next) {
        chain += " includes " + next->name;
      }
      refuse(fmt::format("the file includes itself: {} includes {}; remove one of these lines", chain,
                         escaped(file.string())));
    }
    if (read_.size() > most_files) {
      refuse(fmt::format("more than {} files are included; include fewer", most_files));
    }
    std::string text;
    try {
      text = read_source(file);
    } catch (const Error& error) {
      refuse(error.message());
    }
    return read(text, file);
  }

  std::filesystem::path working_folder_;
  std::vector<Open> open_;
  std::vector<std::filesystem::path> read_;
};

}  // namespace

Included read_including(std::string_view text, const std::filesystem::path& file,
                        const std::filesystem::path& working_folder) {
  Includer includer(working_folder);
  std::vector<RawSection> sections = includer.read(text, file);
  return {std::move(sections), includer.files()};
}

}  // namespace shardrun::job
