#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/forecast/forecast.h"

namespace shardrun::forecast {

/// Ranks that have less than a tenth of the busiest rank's FLOPs to do in forward and backward, or in an iteration.
/// The update is left out: where parameters are replicated every rank does all of it, however little else it has.
struct IdleRanks {
  std::vector<std::int64_t> ranks;  ///< ascending
  std::int64_t ranks_in_all = 0;
  double most = 0;       ///< FLOPs of the busiest rank
  double most_idle = 0;  ///< FLOPs of the one that has most of `ranks`
  std::string work;      ///< what the FLOPs are of
  std::string reason;    ///< "microbatches of 2 rows keep 2 of 4 ranks busy"; empty where it is not known
  std::string remedy;    ///< settings of the job, such as "[data] microbatches = 2"; empty where it is not known
};

/// Nothing where no rank is idle, as of a job whose parts are merely uneven.
[[nodiscard]] std::optional<IdleRanks> idle_ranks(const job::Job& job, const compile::Compiled& compiled,
                                                  const Forecast& forecast);

/// One line, without its end.
[[nodiscard]] std::string to_string(const IdleRanks& idle);

}  // namespace shardrun::forecast
