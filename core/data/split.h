#pragma once

#include <cstdint>
#include <string_view>

namespace shardrun::data {

/// Number of the `count` tokens or rows that are for training, from the first on: floor(fraction * count) in float64,
/// as nanoGPT's `int(n * 0.9)`. The others are for validation. Throws Error{job} unless fraction is in (0, 1], and
/// Error{data} if nothing is left for training. `source` names the data.
[[nodiscard]] std::int64_t training_count(std::int64_t count, double fraction, std::string_view source);

}  // namespace shardrun::data
