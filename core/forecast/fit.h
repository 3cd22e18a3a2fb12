#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/forecast/forecast.h"

namespace shardrun::forecast {

/// Compares the memory that ranks need with what they have: [cluster] memory, or the device's units (GPUs). The needs
/// of ranks that share a unit add up. All members except `over` describe the memory of which the largest share is used.
struct MemoryFit {
  std::uint64_t memory = 0;  ///< its size in bytes
  std::string whose;         ///< "[cluster] memory", or the name of the unit
  std::uint64_t most = 0;    ///< bytes that its ranks need
  /// The ranks that use this memory. If these are unknown, the first rank that needs the most stands for each of them.
  std::vector<std::int64_t> ranks;
  std::int64_t over = 0;  ///< ranks of the job whose memory is too small

  [[nodiscard]] bool fits() const noexcept { return over == 0; }
};

/// Compares with [cluster] memory, else with the units of this machine; returns nothing if there is neither. If the job
/// has more ranks than the machine has units, it is unknown which of the ranks run here.
[[nodiscard]] std::optional<MemoryFit> memory_fit(const job::Job& job, const device::Device& device,
                                                  const Forecast& forecast);

/// Compares the ranks of this machine with the machine's units. If other ranks run on other machines, it is unknown
/// which ranks run here, so each is assumed to need the most. REQUIRES: each rank has a unit.
[[nodiscard]] MemoryFit fit_of_units(const job::Job& job, const device::Device& device, const Forecast& forecast,
                                     std::int64_t ranks_here);

/// The job with other settings, and the bytes that its ranks then need of the fullest memory.
struct Alternative {
  std::vector<std::string> settings;  ///< such as "train.remat=layer", as in --set
  std::uint64_t most = 0;
  bool fits = false;
  double seconds = 0;                  ///< predicted seconds of a step; 0: unknown
  std::vector<std::string> axes = {};  ///< names of the mesh axes
  std::vector<RankForecast> ranks = {};
  std::vector<Alternative> alike = {};  ///< other settings that give each rank the same memory, work and traffic
};

/// The plans of a search for settings with which every rank fits.
struct FitSearch {
  std::vector<Alternative> tried;  ///< alternatives that need less than the job, in the order of planning

  [[nodiscard]] std::vector<Alternative> fitting() const;
};

/// Plans the job with other settings: remat, more microbatches (inference: smaller batches), other values of the
/// strategy's options, mesh sizes and strategies; then several of these together; then other strategies along two or
/// three axes. Makes at most 30 plans, fewer if some fit early; each takes about as long as the job's own. Leaves out
/// settings that are refused or leave more ranks idle than the job. REQUIRES: memory_fit() returns something.
[[nodiscard]] FitSearch find_fitting(const job::Job& job, const compile::Compiled& compiled, const Forecast& forecast);

/// Whether every rank fits, as one line without a line break.
[[nodiscard]] std::string to_string(const MemoryFit& fit);
/// The messages about memory of a run on this machine. `available`: bytes that the machine has for its `ranks_here`
/// ranks. Either number is 0 if it is unknown.
[[nodiscard]] std::vector<std::string> memory_notices(const MemoryFit& fit, std::uint64_t available,
                                                      std::int64_t ranks_here);
/// The settings with which the job fits, the fastest first, as lines of a job file; then the settings that were tried
/// and do not suffice.
[[nodiscard]] std::string to_string(const FitSearch& search);

}  // namespace shardrun::forecast
