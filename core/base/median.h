#pragma once

#include <vector>

namespace shardrun {

/// The middle value; of an even number of them the mean of the two in the middle; 0 of none.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace shardrun
