#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/open_checkpoint.h"
#include "core/compile/compile.h"
#include "core/job/job.h"

namespace shardrun::run {

/// Opens the checkpoint from which the job continues; null if it begins at the start. Adds lines for people. Throws
/// Error{job}, also if the run would replace later checkpoints, or begin anew over results although it is to go on;
/// Error{data} if the checkpoint is damaged. `replaces`: a run that begins at the start may replace what is there.
[[nodiscard]] std::shared_ptr<const checkpoint::OpenCheckpoint> open_resumed(const job::Job& job,
                                                                             std::vector<std::string>& notices,
                                                                             bool replaces = false);

/// Sets the checkpoint from which the job begins; null: none.
void begin_from(std::shared_ptr<const checkpoint::OpenCheckpoint> resumed, compile::Compiled& compiled);

/// Whether the checkpoint is that of the job's last step, and the run that saved it has written its results to the
/// output folder.
[[nodiscard]] bool has_nothing_left(const job::Job& job, const compile::Compiled& compiled);

/// Compares the checkpoint with the job. Returns lines for people. REQUIRES: the data is loaded. Throws Error{job}.
[[nodiscard]] std::vector<std::string> check_resumed(const job::Job& job, const compile::Compiled& compiled);

/// The text "goes on after step 20 from run/checkpoints/step-000020". REQUIRES: the job continues from a checkpoint.
[[nodiscard]] std::string told_of_resumed(const compile::Compiled& compiled);

/// How a run of the job would begin now.
struct Beginning {
  enum class Kind {
    unsaved,     ///< at the start of the job, which has no [checkpoint]
    at_start,    ///< at the start of the job
    resumed,     ///< after a checkpoint
    has_ended,   ///< not at all: the newest checkpoint is that of the last step, and the results exist
    is_refused,  ///< not at all
  };
  Kind kind = Kind::unsaved;
  std::int64_t step = 0;             ///< of the checkpoint
  std::filesystem::path checkpoint;  ///< for people; "" if there is none
  std::vector<std::string> notices;  ///< what the run would report: damaged checkpoints, states that are left out
  std::string refusal;
};

/// Finds out how a run would begin with the checkpoints that exist now. If it would continue from one, loads the data,
/// and compares that checkpoint with the job. Throws as compile::compile() does if data cannot be read.
[[nodiscard]] Beginning beginning_of(const job::Job& job, compile::Compiled& compiled);

/// The text "a run would go on after step 20 from run/checkpoints/step-000020", and a line for each notice. Each line
/// ends in a newline. "" without [checkpoint].
[[nodiscard]] std::string to_string(const Beginning& beginning);

}  // namespace shardrun::run
