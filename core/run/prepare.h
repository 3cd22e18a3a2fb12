#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"

namespace shardrun::run {

/// Whether the process that starts the job is its only rank. With restarts it is not, because a process cannot start
/// itself again.
[[nodiscard]] inline bool runs_here(const job::Job& job) noexcept { return job.ranks == 1 && job.restarts == 0; }

/// Facts about the process that prepares a job, and about its machine.
struct Preparing {
  std::int64_t rank = 0;          ///< the rank whose programs are compiled
  std::int64_t ranks_here = 0;    ///< how many of the job's ranks share this machine; 0 if unknown
  std::int64_t processes = 0;     ///< how many of them this process will start
  bool writes = true;             ///< the run writes to [job] output, and continues from its checkpoints
  bool replaces = false;          ///< the run may replace one of a different job
  bool replaces_file = false;     ///< see RunSettings
  std::string_view restarted_by;  ///< the other launcher that has started the ranks; "" if shardrun starts them
  std::function<void(std::string_view activity)> now_at;  ///< shows the current activity; may be empty
};

/// A job that is ready to run.
struct Prepared {
  compile::Compiled compiled;        ///< with the checkpoint from which the run continues, if any
  std::vector<std::string> notices;  ///< to show before the first step
};

/// Compiles a job and checks everything that does not need its data, before a process starts or the output folder is
/// touched. Throws Error{job, plugin, usage}, and Error{data} if a checkpoint is damaged.
[[nodiscard]] Prepared prepare(const job::Job& job, const Preparing& preparing);

/// Reads and loads the data, for all ranks that are started here, and compares the checkpoint with the job. Adds to the
/// notices. Throws Error{job, data, io}.
void prepare_data(const job::Job& job, Prepared& prepared);

/// The job with the largest number of ranks, at most `most`, that is in the range of [job] ranks and that strategy,
/// mesh, and this machine's cores, units and memory allow. The smallest number of the range is allowed on any number of
/// cores. Returns the same job if [job] ranks is not a range, or if its number is allowed. If no number is allowed,
/// throws the error about the largest one.
[[nodiscard]] job::Job with_fitting_ranks(const job::Job& job, std::int64_t most);

}  // namespace shardrun::run
