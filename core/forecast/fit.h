#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/forecast/forecast.h"

namespace shardrun::forecast {

/// A job's ranks compared with their memory: the host's for each rank, or units of the device. Ranks that share a unit
/// need their sum of it. The numbers are of the fullest memory.
struct MemoryFit {
  std::uint64_t memory = 0;  ///< its bytes
  std::string whose;         ///< "[cluster] memory", or the unit
  std::uint64_t most = 0;    ///< bytes that ranks need of it
  /// These ranks. If it is unknown which they are, each is the first that needs the most.
  std::vector<std::int64_t> ranks;
  std::int64_t over = 0;  ///< ranks of the job whose memory is too small

  [[nodiscard]] bool fits() const noexcept { return over == 0; }
};

/// With [cluster] memory, else with the units of this machine that ranks use. Nothing if there is neither. If the job
/// has more ranks than the machine units, it is unknown which are here.
[[nodiscard]] std::optional<MemoryFit> memory_fit(const job::Job& job, const device::Device& device,
                                                  const Forecast& forecast);

/// The ranks of this machine with its units. REQUIRES: each rank has a unit. With other ranks elsewhere it is unknown
/// which are here, so that each may be the fullest.
[[nodiscard]] MemoryFit fit_of_units(const job::Job& job, const device::Device& device, const Forecast& forecast,
                                     std::int64_t ranks_here);

/// The job with other settings, and its need of the fullest memory.
struct Alternative {
  std::vector<std::string> settings;  ///< "train.remat=layer", as in --set
  std::uint64_t most = 0;
  bool fits = false;
  double seconds = 0;                  ///< predicted, of a step; 0: unknown
  std::vector<std::string> axes = {};  ///< of the mesh
  std::vector<RankForecast> ranks = {};
  std::vector<Alternative> alike = {};  ///< with the same memory, work and traffic on each rank: one split by two names
};

/// The plans of the search for settings with which every rank fits.
struct FitSearch {
  std::vector<Alternative> tried;  ///< those that need less than the job, in the order tried

  [[nodiscard]] std::vector<Alternative> fitting() const;
};

/// Plans the job with other settings: remat, more microbatches, other values of the strategy's options, other sizes of
/// the mesh's axes, other strategies with the same ranks; if none of them fits, several together; and other strategies
/// along two or three axes of theirs. At most 30 plans, each about as long as the job's own. Skips settings that are
/// refused, and those that leave more ranks idle than the job does. REQUIRES: memory_fit() compares the job.
[[nodiscard]] FitSearch find_fitting(const job::Job& job, const compile::Compiled& compiled, const Forecast& forecast);

/// Whether every rank fits: one line without its line break.
[[nodiscard]] std::string to_string(const MemoryFit& fit);
/// The message of a run on this machine about the fit. `available`: bytes that the machine has for `ranks_here`. Either
/// is 0 if unknown.
[[nodiscard]] std::vector<std::string> memory_notices(const MemoryFit& fit, std::uint64_t available,
                                                      std::int64_t ranks_here);
/// Lines: settings with which the job fits, in the form of a job file, the fastest first, and settings that were tried
/// without success.
[[nodiscard]] std::string to_string(const FitSearch& search);

}  // namespace shardrun::forecast
