#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/job/options.h"
#include "core/job/raw.h"

namespace shardrun::job {

/// What is needed to understand the settings of one section.
struct SectionReader {
  std::string file;  ///< begins a message where the section is not in the file
  std::string name;
  std::string owner;  ///< who has the keys: "[train]", or "the model 'gpt'"
  const std::vector<OptionSpec>& specs;
  bool required = true;  ///< whether what is required must be there
  /// Where a relative path starts; null where paths are left as they are. Null setting: the default's.
  std::function<const std::filesystem::path&(const OptionSpec&, const RawSetting*)> folder{};
};

/// The values of all specs, given or by default. `section` may be null: nothing is given.
/// Throws Error{job} for an unknown key, a missing one, or a value that its spec does not accept.
[[nodiscard]] OptionValues read_section(const SectionReader& reader, const RawSection* section);

/// Throws Error{job} that says how to write the key.
[[noreturn]] void refuse_missing(const SectionReader& reader, const RawSection* section, const OptionSpec& spec);

}  // namespace shardrun::job
