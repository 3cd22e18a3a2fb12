#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/forecast/disk.h"
#include "core/forecast/fit.h"
#include "core/forecast/forecast.h"
#include "core/forecast/idle.h"
#include "core/job/job.h"

namespace shardrun::cli {

/// What 'shardrun plan' knows of a job.
struct Planned {
  const job::Job& job;
  const compile::Compiled& compiled;
  forecast::Forecast forecast;
  std::optional<forecast::IdleRanks> idle;
  std::optional<forecast::MemoryFit> fit;
  forecast::DiskUse disk;
};

/// Where the costs of what is predicted come from: "units", "cluster" or "measured".
[[nodiscard]] const char* costs_of(const forecast::Forecast& forecast);

/// For people: one column of least and one of most over ranks, a row for each stage or some of them, the timeline.
/// Less than 120 lines, however many ranks and stages there are; but with `every_rank` a block for each kind of ranks.
/// `width`: of the screen.
[[nodiscard]] std::string plan_text(const Planned& planned, std::size_t width, bool every_rank);

/// Blocks for these ranks alone. REQUIRES: ascending, and the job has them.
[[nodiscard]] std::string ranks_text(const Planned& planned, const std::vector<std::int64_t>& ranks);

/// For programs: every kind of ranks. `search`: where it does not fit.
[[nodiscard]] std::string plan_json(const Planned& planned, const std::optional<forecast::FitSearch>& search);

}  // namespace shardrun::cli
