#include "core/job/raw.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/job/ini.h"
#include "core/options/convert.h"

namespace shardrun::job {
namespace {

/// The most files that are included. Without a limit, files that each include two others could take forever to read.
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

/// Settings in `later` replace those in `sections`.
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

/// Reads a job file's text and all files that it includes. A file's own settings replace included ones, and later
/// includes replace earlier ones. A relative path is relative to the folder of the file that contains it, also in an
/// included file.
class Includer {
 public:
  explicit Includer(std::filesystem::path working_folder) : working_folder_(std::move(working_folder)) {}

  /// The sections of the text and of what it includes. `file` names the text; it is relative to the working folder.
  /// Throws Error{job} for a file that cannot be read, includes itself, or has wrong syntax.
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

  /// All files that were read: absolute; the first one includes the others.
  [[nodiscard]] const std::vector<std::filesystem::path>& files() const noexcept { return read_; }

 private:
  struct Open {
    std::filesystem::path path;
    std::string name;  ///< the name used in messages
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

struct Override {
  std::string_view section;
  std::string_view key;
  std::string_view value;
};

/// The beginning of an override of [sharding], whose keys are names of tensors.
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
  // Names of sections can contain dots. Keys cannot, unless they are names of tensors.
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

/// Applies each `section.key=value`, which replaces or adds a setting. Values are taken literally, without quotes and
/// comments. Throws Error{usage} for another form, and for a key that is overridden twice.
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

}  // namespace

const RawSetting* RawSection::find(std::string_view key) const noexcept {
  const auto found =
      std::find_if(settings.begin(), settings.end(), [&](const RawSetting& setting) { return setting.key == key; });
  return found == settings.end() ? nullptr : &*found;
}

const RawSection* RawJob::find(std::string_view section) const noexcept {
  const auto found =
      std::find_if(sections.begin(), sections.end(), [&](const RawSection& other) { return other.name == section; });
  return found == sections.end() ? nullptr : &*found;
}

RawJob read_job_text(std::string_view text, const std::filesystem::path& file, std::span<const std::string> overrides) {
  RawJob raw;
  raw.file = escaped(file.string());
  raw.name = file.stem().string();
  raw.working_folder = std::filesystem::current_path();
  raw.job_folder = (raw.working_folder / file).parent_path();
  Includer includer(raw.working_folder);
  raw.sections = includer.read(text, file);
  raw.files = includer.files();
  apply_overrides(raw, overrides);
  return raw;
}

RawJob read_job_file(const std::filesystem::path& path, std::span<const std::string> overrides) {
  return read_job_text(read_source(path), path, overrides);
}

}  // namespace shardrun::job
