#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/mesh/shards.h"

namespace shardrun::mesh {

/// Draws the parts as boxes at most `width` columns wide together, in each the ranks that have it. Two dimensions are
/// drawn, those that are split before the others, and what became of the rest is said below. Where there are too many
/// parts for the width or for a screen, those in the middle are left out. Runs of the whole tensor's elements are drawn
/// as if it had one dimension. `axes`: a name for each dimension.
/// REQUIRES: there is a part.
[[nodiscard]] std::string draw(const std::vector<Shard>& shards, const std::vector<std::string>& axes,
                               std::size_t width);

}  // namespace shardrun::mesh
