#pragma once

#include <span>
#include <string>

#include "core/job/raw.h"

namespace shardrun::job {

/// Puts each `section.key=value` in place of what the file says, or beside it; values are taken as they are, with
/// neither quotes nor comments. Throws Error{usage} for another form, and for a key that is overridden twice.
void apply_overrides(RawJob& raw, std::span<const std::string> overrides);

}  // namespace shardrun::job
