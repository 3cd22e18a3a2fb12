#pragma once

#include <boost/json/object.hpp>
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
#include "core/run/beginning.h"

namespace shardrun::cli {

/// Everything that 'shardrun plan' computes for a job.
struct Planned {
  const job::Job& job;
  const compile::Compiled& compiled;
  forecast::Forecast forecast;
  std::optional<forecast::IdleRanks> idle;
  std::vector<forecast::RanksWithout> without;
  std::optional<forecast::MemoryFit> fit;
  forecast::DiskUse disk;
  run::Beginning beginning;
  std::int64_t ranks_here = 1;  ///< ranks per machine, if [job] device has that many units on a machine like this one;
                                ///< at most all ranks

  [[nodiscard]] std::int64_t machines() const { return (job.ranks + ranks_here - 1) / ranks_here; }
};

/// The transport that moves data along a mesh axis.
struct AxisTransport {
  std::string axis;
  std::string transport;
  bool is_direct = false;  ///< it moves device memory that the host cannot address
};

/// The transports of the mesh axes with more than one rank.
[[nodiscard]] std::vector<AxisTransport> transports_of(const compile::Compiled& compiled);

/// The source of the predicted costs: "units", "cluster" or "measured".
[[nodiscard]] const char* costs_of(const forecast::Forecast& forecast);

/// The plan for people: the minimum and the maximum over ranks, rows for stages, the timeline. At most 120 lines, for
/// any number of ranks and stages. With `every_rank` there is a block for each group of equal ranks instead. `width`:
/// that of the screen.
[[nodiscard]] std::string plan_text(const Planned& planned, std::size_t width, bool every_rank);

/// The blocks of these ranks only. REQUIRES: they are ascending, and ranks of the job.
[[nodiscard]] std::string ranks_text(const Planned& planned, const std::vector<std::int64_t>& ranks);

/// The plan as JSON, with every group of equal ranks. `search`: other settings, if the job does not fit.
[[nodiscard]] std::string plan_json(const Planned& planned, const std::optional<forecast::FitSearch>& search);

/// A title: "rank 3", "ranks 0-2".
[[nodiscard]] std::string title_of(const std::vector<std::int64_t>& ranks);

/// The plan of a job with an engine: the parts that its ranks hold, and the memory that the host keeps for it.
[[nodiscard]] std::string engine_plan_text(const job::Job& job, const compile::Compiled& compiled);
[[nodiscard]] std::string engine_plan_json(const job::Job& job, const compile::Compiled& compiled,
                                           const run::Beginning& beginning);

/// Adds the keys `disk` and `beginning` to a plan in JSON.
void add_to_plan(boost::json::object& plan, const forecast::DiskUse& disk, const run::Beginning& beginning);

}  // namespace shardrun::cli
