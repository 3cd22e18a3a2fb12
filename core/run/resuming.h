#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/open_checkpoint.h"
#include "core/compile/compile.h"
#include "core/job/job.h"

namespace shardrun::run {

/// Opens the checkpoint that the job goes on from; null if it begins at the start. Adds lines for the person. Throws
/// Error{job}, also if the run would replace later checkpoints; Error{data} if the checkpoint is damaged. `replaces`:
/// a run that begins at the start may replace those of its output folder.
[[nodiscard]] std::shared_ptr<const checkpoint::OpenCheckpoint> open_resumed(const job::Job& job,
                                                                             std::vector<std::string>& notices,
                                                                             bool replaces = false);

/// Sets the checkpoint that the job begins from; null: none.
void begin_from(std::shared_ptr<const checkpoint::OpenCheckpoint> resumed, compile::Compiled& compiled);

/// Whether the checkpoint is of the job's last step, and the run that saved it has written its results here.
[[nodiscard]] bool has_nothing_left(const job::Job& job, const compile::Compiled& compiled);

/// Compares the checkpoint with the job. Returns lines for the person. REQUIRES: the data is loaded. Throws Error{job}.
[[nodiscard]] std::vector<std::string> check_resumed(const job::Job& job, const compile::Compiled& compiled);

/// "goes on after step 20 from run/checkpoints/step-000020". REQUIRES: the job goes on from a checkpoint.
[[nodiscard]] std::string told_of_resumed(const compile::Compiled& compiled);

}  // namespace shardrun::run
