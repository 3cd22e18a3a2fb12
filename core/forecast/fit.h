#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/forecast/forecast.h"

namespace shardrun::forecast {

/// A job's ranks beside [cluster] memory.
struct MemoryFit {
  std::uint64_t memory = 0;  ///< bytes that a rank has
  std::uint64_t most = 0;    ///< bytes that the fullest rank needs
  std::int64_t rank = 0;     ///< the first that needs so much
  std::int64_t over = 0;     ///< ranks that need more than they have

  [[nodiscard]] bool fits() const noexcept { return over == 0; }
};

/// Nothing where the job has no [cluster] memory.
[[nodiscard]] std::optional<MemoryFit> memory_fit(const job::Job& job, const Forecast& forecast);

/// The same job with other settings, and what its fullest rank needs.
struct Alternative {
  std::vector<std::string> settings;  ///< "train.remat=layer", as --set takes them
  std::uint64_t most = 0;
};

/// The plans that were tried to find settings with which every rank fits.
struct FitSearch {
  std::vector<Alternative> tried;  ///< in that order
  std::uint64_t memory = 0;

  [[nodiscard]] std::vector<Alternative> fitting() const;
};

/// Plans the job with other settings: remat, more microbatches, other values of the strategy's options, other
/// strategies with the same ranks; then, where none of them fits, several together. At most 20 plans, each of which
/// takes about as long as the job's own. Passes over what is refused, and what leaves more ranks idle than the job
/// does. REQUIRES: the job has [cluster] memory.
[[nodiscard]] FitSearch find_fitting(const job::Job& job, const compile::Compiled& compiled, const Forecast& forecast);

/// Whether every rank fits, in one line without its end.
[[nodiscard]] std::string to_string(const MemoryFit& fit);
/// What a run on this machine has to say of it. `available`: bytes that the machine has for `ranks_here`. Each: 0 where
/// it is not known.
[[nodiscard]] std::vector<std::string> memory_notices(const MemoryFit& fit, std::uint64_t available,
                                                      std::int64_t ranks_here);
/// Lines: the settings with which the job fits, as a job file has them, and what else was tried.
[[nodiscard]] std::string to_string(const FitSearch& search);

}  // namespace shardrun::forecast
