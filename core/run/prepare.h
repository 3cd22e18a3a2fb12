#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"

namespace shardrun::run {

/// Who prepares a job, and where.
struct Preparing {
  std::int64_t rank = 0;          ///< whose programs are compiled
  std::int64_t ranks_here = 0;    ///< how many of the job's ranks share this machine; 0 if unknown
  std::int64_t processes = 0;     ///< how many of them this process is to start
  bool writes = true;             ///< to [job] output, and goes on from its checkpoints
  bool replaces = false;          ///< whether the run may take the place of one of a different job
  std::string_view restarted_by;  ///< another launcher, which has started the ranks; "" if shardrun starts them
  std::function<void(std::string_view activity)> now_at;  ///< shows what is being done; may be empty
};

/// A job that can run.
struct Prepared {
  compile::Compiled compiled;        ///< begins from the checkpoint that the run goes on from
  std::vector<std::string> notices;  ///< for the person, before the first step
};

/// Compiles a job and checks all that needs none of its data, before a process starts or the output folder is touched.
/// Throws Error{job, plugin, usage}, and Error{data} for a damaged checkpoint.
[[nodiscard]] Prepared prepare(const job::Job& job, const Preparing& preparing);

/// Reads and loads the data, for all ranks that are started here, and compares the checkpoint with the job. Adds
/// notices. Throws Error{job, data, io}.
void prepare_data(const job::Job& job, Prepared& prepared);

}  // namespace shardrun::run
