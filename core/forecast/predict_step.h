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

/// The predicted step of a job with [cluster].
struct StepForecast {
  Prediction prediction;
  std::vector<std::int64_t> ranks;    ///< the simulated rank of each stage
  bool measured = false;              ///< whether the costs are measured, or else computed from rates
  double samples_per_s = 0;           ///< in training and predictions
  double tokens_per_s = 0;            ///< 0: samples are not tokens
  double model_flops_per_s = 0;       ///< per rank, without what backward computes again
  std::optional<double> utilisation;  ///< model_flops_per_s over [cluster] flops
};

/// Takes the programs of ranks that differ, and keeps for each stage the rank with the most work: the others wait for
/// it.
class StepPredictor {
 public:
  /// Throws Error{job} if the trace is invalid. REQUIRES: the job has [cluster]; job and compiled outlive this.
  StepPredictor(const job::Job& job, const compile::Compiled& compiled);

  /// `executed`: numbers, one per execution in a step. Throws Error{job} if the trace is of another job.
  void add(partition::Programs programs, const std::vector<std::size_t>& executed);

  /// REQUIRES: a rank of each stage has been added.
  [[nodiscard]] StepForecast forecast() const;

 private:
  struct Busiest {
    partition::Programs programs;  ///< one per stage, without the parts that costs do not depend on
    std::vector<std::size_t> executed;
    std::vector<double> seconds;  ///< per instruction, if they are not measured
    double busy = -1;             ///< seconds
  };

  [[nodiscard]] std::vector<double> compute_seconds(const RankStep& step) const;
  [[nodiscard]] double busy_seconds(const RankStep& step, const std::vector<double>& seconds) const;
  [[nodiscard]] StepCosts costs_of(const std::vector<RankStep>& ranks) const;
  [[nodiscard]] double model_flops() const;

  const job::Job& job_;
  const compile::Compiled& compiled_;
  std::optional<MeasuredSteps> measured_;
  compile::AxisRates axes_;
  IdVector<partition::StageId, Busiest> stages_;
};

}  // namespace shardrun::forecast
