#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/job/raw.h"
#include "core/job/schema.h"
#include "core/options/options.h"

namespace shardrun::job {

/// A setting of a fixed section as text, given or by default. Used in messages about two settings.
struct EffectiveSetting {
  std::string section;
  std::string key;
  OptionValue value;
  std::string text;
};

/// Returns null if the key's section has not been read, or if the key has no value.
[[nodiscard]] const EffectiveSetting* find_effective(const std::vector<EffectiveSetting>& settings,
                                                     const KeyName& name);

/// Throws Error{job}, which names both keys and their places, if the job's settings break one of rules().
void check_rules(const Job& job, const std::vector<EffectiveSetting>& settings);

/// The product of the mesh's sizes. Throws Error{job} if it exceeds 64 bits.
[[nodiscard]] std::int64_t places_of_mesh(const Job& job);

/// Throws Error{job} unless the sizes of the mesh multiply to the number of ranks.
void check_mesh(const Job& job);

/// A job under construction, whose sections are read one after the other.
struct Reading {
  const RawJob& raw;
  const SchemaProviders* providers = nullptr;  ///< null: only sections of the schema are read
  Job job{};
  std::vector<EffectiveSetting> settings{};  ///< of the sections read so far
};

/// Reads the values of a section's settings like read_section(). Also adds them to `settings`, and the given ones to
/// `job.given`. `owner`: whose keys they are, for messages: "the model 'toy'".
[[nodiscard]] OptionValues read_settings(Reading& reading, const std::string& section, const std::string& owner,
                                         const std::vector<OptionSpec>& specs, bool required);

/// Replaces `auto` by the number of ranks.
void set_ranks(Reading& reading, std::int64_t ranks);

}  // namespace shardrun::job
