#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/launch/rank.h"

namespace shardrun::launch {

/// The descriptor on which a started rank reads its token. The environment is not used for the token: every process of
/// this user can read a rank's initial environment in /proc, even after the rank has unset the variable.
inline constexpr int handed_over_descriptor = 3;

/// The environment of a rank: `inherited` ("NAME=value" each), in which this rank's values replace all variables that
/// launchers set. It does not contain the token.
[[nodiscard]] std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                                        const RankContext& context, int threads);

/// The bytes that the rank reads from handed_over_descriptor.
[[nodiscard]] std::string handed_over_bytes(const RankContext& context);

/// The environment of this process, "NAME=value" each.
[[nodiscard]] std::vector<std::string> own_environment();

}  // namespace shardrun::launch
