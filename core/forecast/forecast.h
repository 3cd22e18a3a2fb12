#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/forecast/predict_step.h"
#include "core/forecast/timeline.h"
#include "core/job/job.h"

namespace shardrun::forecast {

/// What a group of alike ranks needs and does in a step.
struct RankForecast {
  std::vector<std::int64_t> members;
  partition::StageId stage{0};  ///< 0 without a pipeline
  partition::MemoryUse memory;
  std::uint64_t snapshot = 0;  ///< of the copy of what a rank saves
  partition::SentBytes sent;
  double flops = 0;                 ///< a whole number; a large job's exceeds 64 bits
  double work = 0;                  ///< the FLOPs of forward, backward and iterations, without the update
  std::string busiest_function;     ///< the function of the memory peak
  std::string busiest_instruction;  ///< and the instruction

  /// Bytes of memory that each of them needs.
  [[nodiscard]] std::uint64_t needs() const noexcept { return memory.peak + snapshot; }
};

/// What is known of a job before it runs.
struct Forecast {
  std::vector<RankForecast> ranks;   ///< in the order of their first members
  std::optional<StepForecast> step;  ///< if the job has [cluster]
  std::optional<Timeline> timeline;  ///< of a pipeline, at the step's costs or at unit costs
};

[[nodiscard]] Forecast forecast(const job::Job& job, const compile::Compiled& compiled);

/// Bytes that all ranks need together.
[[nodiscard]] std::uint64_t bytes_of_all(const Forecast& forecast) noexcept;

}  // namespace shardrun::forecast
