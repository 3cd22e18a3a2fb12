#pragma once

#include <cstdint>
#include <string_view>

namespace shardrun::data {

/// How many of `count` tokens or rows, from the first on, are trained on: floor(fraction * count) in float64, as
/// nanoGPT's `int(n * 0.9)`. The rest is for validation.
/// Throws Error{job} unless fraction is in (0, 1], and Error{data} where nothing is left to train on. `source` names
/// the data.
[[nodiscard]] std::int64_t training_count(std::int64_t count, double fraction, std::string_view source);

}  // namespace shardrun::data
