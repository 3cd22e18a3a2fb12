#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"
#include "core/task/disk.h"
#include "core/task/fit.h"
#include "core/task/forecast.h"
#include "core/task/idle.h"

namespace shardrun::cli {

/// What 'shardrun plan' knows of a job.
struct Planned {
  const job::Job& job;
  const compile::Compiled& compiled;
  task::Forecast forecast;
  std::optional<task::IdleRanks> idle;
  std::optional<task::MemoryFit> fit;
  task::DiskUse disk;
};

/// Where the costs of what is predicted come from: "units", "cluster" or "measured".
[[nodiscard]] const char* costs_of(const task::Forecast& forecast);

/// For people: one column of least and one of most over ranks, a row for each stage or some of them, the timeline.
/// Less than 120 lines, however many ranks and stages there are; but with `every_rank` a block for each kind of ranks.
/// `width`: of the screen.
[[nodiscard]] std::string plan_text(const Planned& planned, std::size_t width, bool every_rank);

/// Blocks for these ranks alone. REQUIRES: ascending, and the job has them.
[[nodiscard]] std::string ranks_text(const Planned& planned, const std::vector<std::int64_t>& ranks);

/// For programs: every kind of ranks. `search`: where it does not fit.
[[nodiscard]] std::string plan_json(const Planned& planned, const std::optional<task::FitSearch>& search);

}  // namespace shardrun::cli
