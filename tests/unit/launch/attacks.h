#pragma once

#include <string>
#include <vector>

#include "core/launch/rank.h"

namespace shardrun::test {

/// What a stranger on the same machine can do to a job's launcher, one thing after the other; `context` is that of a
/// rank that has joined. Returns "NAME: OUTCOME" each, where the outcome is "dropped" or what the launcher answered.
[[nodiscard]] std::vector<std::string> attack(const launch::RankContext& context);

}  // namespace shardrun::test
