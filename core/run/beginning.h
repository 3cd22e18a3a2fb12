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
    unsaved,     ///< at the job's start; the job has no [checkpoint]
    at_start,    ///< at the job's start
    resumed,     ///< after a checkpoint
    has_ended,   ///< not at all: the newest checkpoint is of the last step, and the results are there
    is_refused,  ///< not at all
  };
  Kind kind = Kind::unsaved;
  std::int64_t step = 0;             ///< of the checkpoint
  std::filesystem::path checkpoint;  ///< for people; "" if there is none
  std::vector<std::string> notices;  ///< what the run would say: damaged checkpoints, states that are left out
  std::string refusal;
};

/// Looks at the checkpoints that are there now, and compares the one that the run would go on from with the job. Then
/// it loads the data. Throws as compile::compile() for data that cannot be read.
[[nodiscard]] Beginning beginning_of(const job::Job& job, compile::Compiled& compiled);

/// "a run would go on after step 20 from run/checkpoints/step-000020", and a line for each notice, each with its
/// newline; "" without [checkpoint].
[[nodiscard]] std::string to_string(const Beginning& beginning);

}  // namespace shardrun::run
