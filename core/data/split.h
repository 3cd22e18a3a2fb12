#pragma once

#include <cstdint>
#include <string_view>

namespace shardrun::data {

/// How many of the `count` tokens or rows are for training, from the first on: floor(fraction * count), computed
/// exactly for the decimal number as written. The others are for validation. Throws Error{job} unless fraction is in
/// (0, 1], and Error{data} if nothing is left for training. `source` names the data.
[[nodiscard]] std::int64_t training_count(std::int64_t count, double fraction, std::string_view source);

}  // namespace shardrun::data
