#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/forecast/forecast.h"

namespace shardrun::forecast {

/// Ranks that have less than a tenth of the busiest rank's FLOPs in forward and backward, or in an iteration. The
/// update is not counted, because with replicated parameters every rank executes all of it.
struct IdleRanks {
  std::vector<std::int64_t> ranks;  ///< ascending
  std::int64_t ranks_in_all = 0;
  double most = 0;       ///< FLOPs of the busiest rank
  double most_idle = 0;  ///< the most FLOPs of any of `ranks`
  std::string work;      ///< the work that is counted, such as "forward and backward in a step"
  std::string reason;    ///< such as "microbatches of 2 rows keep 2 of 4 ranks busy"; empty if unknown
  std::string remedy;    ///< settings that would help, such as "[data] microbatches = 2"; empty if unknown
};

/// Returns nothing if no rank is idle. A rank with a smaller part than other ranks is not idle.
[[nodiscard]] std::optional<IdleRanks> idle_ranks(const job::Job& job, const compile::Compiled& compiled,
                                                  const Forecast& forecast);

/// Ranks that have no index of a dimension that is split among them, such as attention heads, although they have other
/// work. They wait while other ranks compute with that dimension.
struct RanksWithout {
  std::string axis;                 ///< name of the axis in the graph, such as "heads"
  std::vector<std::int64_t> ranks;  ///< ascending
  std::int64_t size = 0;            ///< number of indices of the dimension
  std::string split_over;           ///< ranks that the dimension is split among, such as "4 ranks along model"
  double share = 1;                 ///< least work of `ranks` over the most work on the same stage
};

/// One entry per axis, sorted by axis. Leaves out ranks that are in `idle`, and the rows of microbatches.
[[nodiscard]] std::vector<RanksWithout> ranks_without(const compile::Compiled& compiled, const Forecast& forecast,
                                                      const std::optional<IdleRanks>& idle);

/// Says that each of several ranks computes the whole job, no faster than one rank would; empty if something is split.
[[nodiscard]] std::string unsplit_notice(const compile::Compiled& compiled, const Forecast& forecast);

/// One line without a line break.
[[nodiscard]] std::string to_string(const IdleRanks& idle);
[[nodiscard]] std::string to_string(const RanksWithout& without);

}  // namespace shardrun::forecast
