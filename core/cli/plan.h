#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/cli/options.h"
#include "core/compile/compile.h"
#include "core/forecast/disk.h"
#include "core/forecast/fit.h"
#include "core/forecast/forecast.h"
#include "core/forecast/idle.h"
#include "core/job/job.h"
#include "core/run/resuming.h"

namespace shardrun::cli {

/// All that 'shardrun plan' computes for a job.
struct Planned {
  const job::Job& job;
  const compile::Compiled& compiled;
  forecast::Forecast forecast;
  std::optional<forecast::IdleRanks> idle;
  std::vector<forecast::RanksWithout> without;
  std::optional<forecast::MemoryFit> fit;
  forecast::DiskUse disk;
  run::Beginning beginning;
  std::int64_t ranks_here = 1;  ///< ranks per machine: its units, at most all ranks

  [[nodiscard]] std::int64_t machines() const { return (job.ranks + ranks_here - 1) / ranks_here; }
};

/// The transport that moves data along a mesh axis.
struct AxisTransport {
  std::string axis;
  std::string transport;
  bool is_direct = false;  ///< whether it moves device memory that the host cannot address
};

/// The transports of the mesh axes with more than one rank.
[[nodiscard]] std::vector<AxisTransport> transports_of(const compile::Compiled& compiled);

/// Where predicted costs come from: "units" (unit costs), "cluster" (rates) or "measured" (a trace).
[[nodiscard]] const char* costs_of(const forecast::Forecast& forecast);

/// The plan for people: minimum and maximum over ranks, a row per stage, the timeline. Has at most 120 lines for any
/// number of ranks and stages. With `every_rank`, it has a block for each group of equal ranks instead. `width`:
/// columns of the screen.
[[nodiscard]] std::string plan_text(const Planned& planned, std::size_t width, bool every_rank);

/// The blocks of these ranks only. REQUIRES: `ranks` are ascending and exist in the job.
[[nodiscard]] std::string ranks_text(const Planned& planned, const std::vector<std::int64_t>& ranks);

/// The plan as JSON, with every group of equal ranks. `search`: what was found for a job that does not fit.
[[nodiscard]] std::string plan_json(const Planned& planned, const std::optional<forecast::FitSearch>& search);

/// Memory, traffic and work of alike ranks, and the predicted step, as in plan_json().
[[nodiscard]] boost::json::object json_of(const forecast::RankForecast& ranks, const forecast::Forecast& forecast,
                                          const compile::Compiled& compiled);
[[nodiscard]] boost::json::object json_of(const forecast::StepForecast& step);

/// The plan of a job, as a run in the document that the page of a report draws (core/report/document.h). It has the
/// mesh, memory and traffic of each rank, the predicted time, the timeline of a pipeline, and which rank has which part
/// of the tensors.
[[nodiscard]] boost::json::object plan_document(const job::Job& job, const compile::Compiled& compiled);

/// Throws as require_new() does, except for a file that is a report, which needs no --replace.
void require_report_or_new(const Parsed& parsed, const std::filesystem::path& file);

/// Writes the page that draws the runs of plan_document() or of reports, and prints the file's name. Throws as
/// require_report_or_new() does, and Error{io}.
void write_report(const Parsed& parsed, const std::filesystem::path& file, std::string_view title,
                  boost::json::array runs);

/// A title such as "rank 3" or "ranks 0-2".
[[nodiscard]] std::string title_of(const std::vector<std::int64_t>& ranks);

/// The plan of a job with an engine: the parts that ranks hold, and the memory that the host needs for it.
[[nodiscard]] std::string engine_plan_text(const job::Job& job, const compile::Compiled& compiled);
[[nodiscard]] std::string engine_plan_json(const job::Job& job, const compile::Compiled& compiled,
                                           const run::Beginning& beginning);

/// Adds the keys `disk` and `beginning` to the JSON of a plan.
void add_to_plan(boost::json::object& plan, const forecast::DiskUse& disk, const run::Beginning& beginning);

}  // namespace shardrun::cli
