#include "core/job/raw.h"

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/job/include.h"
#include "core/job/overrides.h"
#include "core/job/source.h"

namespace shardrun::job {

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
  Included included = read_including(text, file, raw.working_folder);
  raw.sections = std::move(included.sections);
  raw.files = std::move(included.files);
  apply_overrides(raw, overrides);
  return raw;
}

RawJob read_job_file(const std::filesystem::path& path, std::span<const std::string> overrides) {
  return read_job_text(read_source(path), path, overrides);
}

}  // namespace shardrun::job
