#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/launch/rank.h"

namespace shardrun::launch {

/// The descriptor on which a started rank reads its token. Not the environment, which every process of this user can
/// read in /proc for as long as the rank runs, even after the rank has unset the variable.
inline constexpr int handed_over_descriptor = 3;

/// The environment of a rank: `inherited` ("NAME=value" each) with the names that launchers set replaced. The token is
/// not in it.
[[nodiscard]] std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                                        const RankContext& context, int threads);

/// What goes through the descriptor.
[[nodiscard]] std::string handed_over_bytes(const RankContext& context);

/// This process's own environment.
[[nodiscard]] std::vector<std::string> own_environment();

}  // namespace shardrun::launch
