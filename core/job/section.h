#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/job/hints.h"
#include "core/job/raw.h"
#include "core/options/options.h"

namespace shardrun::job {

/// Everything that is needed to interpret the settings of one section.
struct SectionReader {
  std::string file;  ///< the start of a message if the section is not in the file
  std::string name;
  std::string owner;  ///< whose keys they are, for messages: "[train]", or "the model 'toy'"
  const std::vector<OptionSpec>& specs;
  bool required = true;  ///< missing required keys are errors
  /// Returns the folder to which a relative path refers. The RawSetting is null for a default value. Without this
  /// function, paths are kept as they are.
  std::function<const std::filesystem::path&(const OptionSpec&, const RawSetting*)> folder{};
  std::function<std::vector<KnownKeys>()> elsewhere = known_keys;  ///< other sections, for hints about unknown keys
};

/// The values of all specs, given or by default. `section`: null if nothing is given. Throws Error{job} for an unknown
/// or missing key, or a value that its spec does not accept.
[[nodiscard]] OptionValues read_section(const SectionReader& reader, const RawSection* section);

/// Checks the options that a model or plugin declares. Called before the job's values are read, so that a plugin's
/// mistakes are not blamed on the job. Throws Error{plugin}.
void check_declared(std::string_view owner, const std::vector<OptionSpec>& specs);

/// A key and its value, as a job file would write it.
using WrittenSetting = std::pair<std::string_view, std::string_view>;

/// Values for `specs` without a job file. `settings` are written as in a job file. All others get their defaults.
/// Relative paths are kept as they are. Throws Error{job} as for a job file.
[[nodiscard]] OptionValues make_options(const std::vector<OptionSpec>& specs, std::span<const WrittenSetting> settings);
[[nodiscard]] OptionValues make_options(const std::vector<OptionSpec>& specs,
                                        std::initializer_list<WrittenSetting> settings);

/// Throws Error{job}, which says how to write the key.
[[noreturn]] void refuse_missing(const SectionReader& reader, const RawSection* section, const OptionSpec& spec);

}  // namespace shardrun::job
