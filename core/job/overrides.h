#pragma once

#include <span>
#include <string>

#include "core/job/raw.h"

namespace shardrun::job {

/// Applies each `section.key=value`: it replaces or adds a setting. Values are taken literally, without quotes and
/// comments. Throws Error{usage} for another form, and for a key that is overridden twice.
void apply_overrides(RawJob& raw, std::span<const std::string> overrides);

}  // namespace shardrun::job
