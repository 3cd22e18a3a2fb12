#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/mesh/shards.h"

namespace shardrun::cli {

/// Draws each part of a tensor as a box that names the ranks that have it. The drawing is at most `width` columns wide.
/// - Two dimensions are drawn, preferably split ones. A line below describes the others.
/// - If there are too many parts for the width or the screen, parts in the middle are left out.
/// - Parts that are runs of the flattened tensor are drawn along one dimension.
/// `axes`: a name for each dimension. REQUIRES: there is a part.
[[nodiscard]] std::string draw(const std::vector<mesh::Shard>& shards, const std::vector<std::string>& axes,
                               std::size_t width);

}  // namespace shardrun::cli
