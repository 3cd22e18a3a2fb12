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

/// What ranks that are alike need and do in a step.
struct RankForecast {
  std::vector<std::int64_t> members;
  std::int32_t stage = 0;  ///< of the pipeline
  partition::MemoryUse memory;
  partition::SentBytes sent;
  double flops = 0;                 ///< whole numbers; a large job's are beyond 64 bits
  double work = 0;                  ///< those of forward, backward and iterations: without the update
  std::string busiest_function;     ///< in which most memory is used,
  std::string busiest_instruction;  ///< and where
};

/// What is known of a job before it runs.
struct Forecast {
  std::vector<RankForecast> ranks;   ///< in the order of their first members
  std::optional<StepForecast> step;  ///< where the job has [cluster]
  std::optional<Timeline> timeline;  ///< of a pipeline, at the step's costs, or at unit costs
};

/// `precision` mixed: parameters, gradients and activations take 2 bytes an element; the optimizer's states 4, and 4
/// more for its own copy of the parameters (Micikevicius et al. 2017, arXiv:1710.03740, section 3.1).
[[nodiscard]] Forecast forecast(const job::Job& job, const compile::Compiled& compiled);

/// Bytes of an element of a state, or of a value (StateKind::parameter), in the job's precision.
[[nodiscard]] std::size_t element_bytes(const job::Job& job, const compile::Compiled& compiled, graph::DType dtype,
                                        graph::StateKind kind);

/// Bytes that all ranks need together.
[[nodiscard]] std::uint64_t bytes_of_all(const Forecast& forecast) noexcept;

}  // namespace shardrun::forecast
