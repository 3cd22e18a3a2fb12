#pragma once

#include "core/job/job.h"
#include "core/job/raw.h"

namespace shardrun::job {

/// The settings of the fixed sections as text, defaults too, for messages about two of them.
struct EffectiveSetting {
  std::string section;
  std::string key;
  OptionValue value;
  std::string text;
};

/// Throws Error{job}, naming both keys and where they stand, for what rules() excludes.
void check_rules(const Job& job, const std::vector<EffectiveSetting>& settings);

/// The product of the mesh's sizes. Throws Error{job} where 64 bits do not hold it.
[[nodiscard]] std::int64_t places_of_mesh(const Job& job);

/// Throws Error{job} unless the sizes of the mesh multiply to the number of ranks.
void check_mesh(const Job& job);

}  // namespace shardrun::job
