#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"

namespace shardrun::run {

/// How a run of a job with [checkpoint] would begin now.
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

/// Finds out how a run would begin with the checkpoints that exist now: compares the checkpoint from which it would
/// continue with the job. Then it loads the data. Throws as compile::compile() does if data cannot be read.
[[nodiscard]] Beginning beginning_of(const job::Job& job, compile::Compiled& compiled);

/// The text "a run would go on after step 20 from run/checkpoints/step-000020", and a line for each notice. Each line
/// ends in a newline. "" without [checkpoint].
[[nodiscard]] std::string to_string(const Beginning& beginning);

}  // namespace shardrun::run
