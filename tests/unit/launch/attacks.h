#pragma once

#include <string>
#include <vector>

#include "core/files/descriptor.h"
#include "core/launch/rank.h"

namespace shardrun::test {

/// A connection to the launcher that says nothing. Throws Error where it does not listen.
[[nodiscard]] files::FileDescriptor connect_to(const launch::RankContext& context);

/// What a stranger on the same machine can do to a job's launcher, one thing after the other; `context` is that of a
/// rank that has joined. Returns "NAME: OUTCOME" each, where the outcome is "dropped" or what the launcher answered.
[[nodiscard]] std::vector<std::string> attack(const launch::RankContext& context);

}  // namespace shardrun::test
