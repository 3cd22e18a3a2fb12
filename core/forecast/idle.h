#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/forecast/forecast.h"

namespace shardrun::forecast {

/// Ranks with less than a tenth of the busiest rank's FLOPs in forward and backward, or in an iteration. The update
/// does not count: with replicated parameters every rank does all of it.
struct IdleRanks {
  std::vector<std::int64_t> ranks;  ///< ascending
  std::int64_t ranks_in_all = 0;
  double most = 0;       ///< FLOPs of the busiest rank
  double most_idle = 0;  ///< the most FLOPs of any of `ranks`
  std::string work;      ///< what the FLOPs belong to
  std::string reason;    ///< "microbatches of 2 rows keep 2 of 4 ranks busy"; empty if unknown
  std::string remedy;    ///< settings of the job, such as "[data] microbatches = 2"; empty if unknown
};

/// Nothing if no rank is idle. Merely uneven parts are not idle.
[[nodiscard]] std::optional<IdleRanks> idle_ranks(const job::Job& job, const compile::Compiled& compiled,
                                                  const Forecast& forecast);

/// Ranks that have work and yet no index of a dimension that is split among them, such as attention heads. They are
/// idle while others compute with it.
struct RanksWithout {
  std::string axis;                 ///< of the graph: "heads"
  std::vector<std::int64_t> ranks;  ///< ascending
  std::int64_t size = 0;            ///< of the dimension
  std::string split_over;           ///< "4 ranks along model"
  double share = 1;                 ///< the least of them does of the work of the busiest rank of its stage
};

/// Sorted by axis. Ranks that are `idle` as a whole are left out, and so are rows of microbatches.
[[nodiscard]] std::vector<RanksWithout> ranks_without(const compile::Compiled& compiled, const Forecast& forecast,
                                                      const std::optional<IdleRanks>& idle);

/// That all of several ranks compute the whole job, so that none of them makes it faster; empty if something is split.
[[nodiscard]] std::string unsplit_notice(const compile::Compiled& compiled, const Forecast& forecast);

/// One line without its line break.
[[nodiscard]] std::string to_string(const IdleRanks& idle);
[[nodiscard]] std::string to_string(const RanksWithout& without);

}  // namespace shardrun::forecast
