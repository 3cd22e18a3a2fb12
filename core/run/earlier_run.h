#pragma once

#include <string>

#include "core/compile/compile.h"
#include "core/job/job.h"

namespace shardrun::run {

/// The text of a run's job.ini: the job, and in a comment the name of its file.
[[nodiscard]] std::string text_of_run(const job::Job& job);

/// Throws Error{job} if the output folder has a run of a different job, which this one would replace: with another
/// task, model or data, or with other settings and of a job file with another name. A run that goes on from the run in
/// the folder replaces nothing. REQUIRES: `compiled.resumed` is set.
void require_same_job(const job::Job& job, const compile::Compiled& compiled);

}  // namespace shardrun::run
