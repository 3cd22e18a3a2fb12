#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/forecast/predict_step.h"
#include "core/forecast/timeline.h"
#include "core/job/job.h"

namespace shardrun::forecast {

/// The memory of each rank of a group with alike programs (partition/alike.h), and its work and traffic in a step.
struct RankForecast {
  std::vector<std::int64_t> members;
  partition::StageId stage{0};  ///< 0 without a pipeline
  partition::MemoryUse memory;
  std::uint64_t snapshot = 0;  ///< bytes of the copy of the states that a rank saves; 0: it makes no copy
  partition::SentBytes sent;
  /// The bytes that a call of a program sends, by the program's name; only for jobs that continue prompts.
  std::map<std::string, partition::SentBytes> programs = {};
  double flops = 0;                 ///< of a step; a double, because a large job's number exceeds 64 bits
  double work = 0;                  ///< `flops` without the update's
  std::string busiest_function;     ///< the function with the largest memory need
  std::string busiest_instruction;  ///< the instruction of that function at which the need is largest

  /// Bytes of memory that each rank of the group needs.
  [[nodiscard]] std::uint64_t needs() const noexcept { return memory.peak + snapshot; }
};

/// The predictions for a job before it runs: memory, work, traffic and time.
struct Forecast {
  std::vector<RankForecast> ranks;   ///< groups of ranks with alike programs, by first member
  std::optional<StepForecast> step;  ///< predicted time; only with [cluster] flops or measured times
  std::optional<Timeline> timeline;  ///< only of a pipeline; in predicted seconds, or in unit costs
};

[[nodiscard]] Forecast forecast(const job::Job& job, const compile::Compiled& compiled);

}  // namespace shardrun::forecast
