#pragma once

#include <cstdint>
#include <string_view>

namespace shardrun::data {

/// How many of `count` tokens or rows are training data: floor(fraction * count), exact for the decimal number as
/// written. They come first; the others are validation data. `source` names the data in messages. Throws Error{job}
/// unless fraction is in (0, 1], and Error{data} if no training data is left.
[[nodiscard]] std::int64_t training_count(std::int64_t count, double fraction, std::string_view source);

}  // namespace shardrun::data
