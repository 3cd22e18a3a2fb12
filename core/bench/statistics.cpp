#include "core/bench/statistics.h"

#include <shardrun/transport.h>

#include <algorithm>

namespace shardrun::bench {

double p99(std::vector<double> values) {
  const std::size_t above = values.size() / 100;
  const auto place = values.end() - 1 - static_cast<std::ptrdiff_t>(above);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

std::vector<double> slowest(std::span<const std::vector<double>> of_ranks) {
  std::vector<double> longest = of_ranks.front();
  for (const std::vector<double>& each : of_ranks) {
    for (std::size_t i = 0; i < longest.size(); ++i) {
      longest[i] = std::max(longest[i], each[i]);
    }
  }
  return longest;
}

double bus_factor(std::uint32_t opcode, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (opcode) {
    case SR_OP_BARRIER: return 0;
    case SR_OP_SEND:
    case SR_OP_BROADCAST:
    case SR_OP_REDUCE: return 1;
    case SR_OP_ALL_REDUCE: return 2 * others;
    default: return others;
  }
}

}  // namespace shardrun::bench
