#pragma once

#include <string>

#include "core/compile/compile.h"
#include "core/job/job.h"

namespace shardrun::run {

/// The text of a run's job.ini: the job and, in a comment, the name of its file.
[[nodiscard]] std::string text_of_run(const job::Job& job);

/// Throws Error{job} if the output folder has a run of a different job, which this run would replace. A job is
/// different if its task, model or data differ, or if other settings differ and its file has another name. A run that
/// continues the run in the folder replaces nothing. REQUIRES: begin_from() was called.
void require_same_job(const job::Job& job, const compile::Compiled& compiled);

}  // namespace shardrun::run
