#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/forecast/forecast.h"

namespace shardrun::forecast {

/// A job's ranks compared with the memory that each has: of the host, or of a unit of the device.
struct MemoryFit {
  std::uint64_t memory = 0;  ///< bytes of a rank's memory
  std::string whose;         ///< "[cluster] memory", or the unit
  std::uint64_t most = 0;    ///< bytes that the fullest rank needs of it
  std::int64_t rank = 0;     ///< the first that needs the most
  std::int64_t over = 0;     ///< ranks that need more than they have

  [[nodiscard]] bool fits() const noexcept { return over == 0; }
};

/// With [cluster] memory, else with the smallest unit that ranks use on this machine. Nothing if there is neither.
[[nodiscard]] std::optional<MemoryFit> memory_fit(const job::Job& job, const device::Device& device,
                                                  const Forecast& forecast);

/// The job with other settings, and what its fullest rank needs.
struct Alternative {
  std::vector<std::string> settings;  ///< "train.remat=layer", as in --set
  std::uint64_t most = 0;
};

/// The plans of the search for settings with which every rank fits.
struct FitSearch {
  std::vector<Alternative> tried;  ///< in the order tried
  std::uint64_t memory = 0;

  [[nodiscard]] std::vector<Alternative> fitting() const;
};

/// Plans the job with other settings: remat, more microbatches, other values of the strategy's options, other
/// strategies with the same ranks; and if none of them fits, several together. At most 20 plans, each about as long as
/// the job's own. Skips settings that are refused, and those that leave more ranks idle than the job does. `memory`:
/// bytes of a rank's memory.
[[nodiscard]] FitSearch find_fitting(const job::Job& job, const compile::Compiled& compiled, const Forecast& forecast,
                                     std::uint64_t memory);

/// Whether every rank fits: one line without its line break.
[[nodiscard]] std::string to_string(const MemoryFit& fit);
/// The message of a run on this machine about the fit. `available`: bytes that the machine has for `ranks_here`. Either
/// is 0 if unknown.
[[nodiscard]] std::vector<std::string> memory_notices(const MemoryFit& fit, std::uint64_t available,
                                                      std::int64_t ranks_here);
/// Lines: settings with which the job fits, in the form of a job file, and what else was tried.
[[nodiscard]] std::string to_string(const FitSearch& search);

}  // namespace shardrun::forecast
