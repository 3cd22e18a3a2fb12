#pragma once

#include <vector>

namespace shardrun {

/// The middle value. For an even number of values, the mean of the two in the middle; for no values, 0.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace shardrun
