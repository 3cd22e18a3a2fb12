#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job/job.h"
#include "core/job/raw.h"
#include "core/job/rules.h"
#include "core/job/schema.h"
#include "core/options/options.h"

namespace shardrun::job {

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
