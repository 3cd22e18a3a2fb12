#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/compile/compile.h"
#include "core/device/device.h"
#include "core/forecast/measured.h"
#include "core/forecast/predict.h"
#include "core/job/job.h"

namespace shardrun::forecast {

/// A step as [cluster] lets it be predicted.
struct StepForecast {
  Prediction prediction;
  std::vector<std::int64_t> ranks;    ///< of each stage the one whose step it is
  bool measured = false;              ///< the costs, or reckoned from rates
  double samples_per_s = 0;           ///< of training
  double tokens_per_s = 0;            ///< 0: the job's samples are no tokens
  double model_flops_per_s = 0;       ///< of a rank, without what backward computes again
  std::optional<double> utilisation;  ///< model_flops_per_s over [cluster] flops
};

/// Takes the programs of ranks that differ and keeps of each stage the one that has most to do: the others wait for it.
class StepPredictor {
 public:
  /// `device`: for which the programs are made. Throws Error{job} for a trace that is none. REQUIRES: the job has
  /// [cluster]. Job, compiled and device outlive this.
  StepPredictor(const job::Job& job, const compile::Compiled& compiled, const device::Device& device);

  /// `executed`: by number, one for each execution in a step. Throws Error{job} where the trace is of another job.
  void add(partition::Programs programs, const std::vector<std::size_t>& executed);

  /// REQUIRES: a rank of each stage has been added.
  [[nodiscard]] StepForecast forecast() const;

 private:
  struct Busiest {
    partition::Programs programs;  ///< without what costs no more depend on: there is one a stage
    std::vector<std::size_t> executed;
    std::vector<double> seconds;  ///< of each instruction, where they are not measured
    double busy = -1;             ///< seconds
  };

  [[nodiscard]] std::vector<double> compute_seconds(const RankStep& step) const;
  [[nodiscard]] double busy_seconds(const RankStep& step, const std::vector<double>& seconds) const;
  [[nodiscard]] StepCosts costs_of(const std::vector<RankStep>& ranks) const;
  [[nodiscard]] double model_flops() const;

  const job::Job& job_;
  const compile::Compiled& compiled_;
  const std::size_t f32_bytes_;
  std::optional<MeasuredSteps> measured_;
  std::vector<std::optional<compile::AxisRate>> axes_;
  std::vector<Busiest> stages_;
};

}  // namespace shardrun::forecast
