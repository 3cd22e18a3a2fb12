#pragma once

#include <cstdint>
#include <string_view>

namespace shardrun::data {

/// Number of the `count` tokens or rows that are for training, from the first on: floor(fraction * count),
/// exactly for the decimal number that was written. The others are for validation. Throws Error{job} unless fraction is
/// in (0, 1], and Error{data} if nothing is left for training. `source` names the data.
[[nodiscard]] std::int64_t training_count(std::int64_t count, double fraction, std::string_view source);

}  // namespace shardrun::data
