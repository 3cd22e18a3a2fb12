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

/// A job whose sections are being read, one after the other.
struct Reading {
  const RawJob& raw;
  const SchemaProviders* providers = nullptr;  ///< null: only sections of the schema are read
  Job job{};
  std::vector<EffectiveSetting> settings{};  ///< of the sections that have been read
};

/// The values of a section's settings, as read_section(); also adds them to `settings`, and the given ones to
/// `job.given`. `owner`: who has the keys, "the model 'toy'".
[[nodiscard]] OptionValues read_settings(Reading& reading, const std::string& section, const std::string& owner,
                                         const std::vector<OptionSpec>& specs, bool required);

/// Replaces the number of ranks that stands for `auto`.
void set_ranks(Reading& reading, std::int64_t ranks);

}  // namespace shardrun::job
