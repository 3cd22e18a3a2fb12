#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/device/device.h"
#include "core/forecast/meetings.h"
#include "core/forecast/predict.h"
#include "core/job/job.h"

namespace shardrun::forecast {

/// An executed instruction in a trace. Times are in seconds, by one clock for all ranks.
struct MeasuredSpan {
  std::string function;
  std::string category;
  std::string name;
  std::int64_t flops = 0;
  std::int64_t bytes = 0;
  double begin = 0;
  double end = 0;
};

/// The steps of a run's trace, by rank and number, with their instructions in order of execution.
class MeasuredSteps {
 public:
  /// `path`: the trace, or the run's output folder. Throws Error{job}, beginning with `place`, for another file.
  MeasuredSteps(const std::filesystem::path& path, std::string place);

  /// Throws Error{job} if the trace does not have the rank, or if a traced step has other instructions than `step`; the
  /// message names the first difference. If `step` has the hook after_step, traced steps without it are skipped.
  void require(const RankStep& step);

  /// The median over steps of the seconds that a rank computed and moved data. REQUIRES: the rank passed require().
  [[nodiscard]] double computing(std::int64_t rank) const;

  /// Per rank and instruction (by number in the step), the median duration over the steps that all these ranks have.
  /// For a wait: the time after every participant had started. Throws Error{job} if the ranks have no step in common.
  /// REQUIRES: each rank passed require().
  [[nodiscard]] std::vector<std::vector<double>> medians(const std::vector<RankStep>& ranks,
                                                         mesh::AxisId pipeline_axis) const;

 private:
  using Steps = std::map<std::int64_t, std::vector<MeasuredSpan>>;

  [[noreturn]] void refuse(const std::string& why) const;
  void read(const std::filesystem::path& path);

  std::string place_;
  std::map<std::int64_t, Steps> ranks_;
};

/// The predicted time of a step of a job with [cluster].
struct StepForecast {
  Prediction prediction;
  std::vector<std::int64_t> ranks;  ///< the rank of each stage that was simulated
  bool measured = false;            ///< whether costs come from a measured trace; otherwise they come from rates
  double samples_per_s = 0;         ///< of training or predictions; otherwise 0
  double tokens_per_s = 0;          ///< 0 if samples are not tokens
  std::optional<double> chunk_s;    ///< seconds in which a chunk of a prompt is read; set if the job continues prompts
  double model_flops_per_s = 0;     ///< FLOPs per second of a rank, without those that recompute activations
  std::optional<double> utilisation;  ///< model_flops_per_s divided by [cluster] flops
};

/// Takes the programs of ranks that differ, and keeps those of the busiest rank of each stage: the others wait for it.
class StepPredictor {
 public:
  /// Throws Error{job} if the trace is invalid. REQUIRES: the job has [cluster]; job and compiled outlive this.
  StepPredictor(const job::Job& job, const compile::Compiled& compiled);

  /// `executed`: the program numbers of a step, in order. Throws Error{job} if the measured trace is of another job.
  void add(partition::Programs programs, const std::vector<std::size_t>& executed);

  /// REQUIRES: a rank of each stage has been added.
  [[nodiscard]] StepForecast forecast() const;

 private:
  struct Busiest {
    partition::Programs programs;  ///< programs of the rank, without what predict() does not read
    std::vector<std::size_t> executed;
    std::vector<double> seconds;  ///< cost of each instruction, if costs are not measured
    double busy = -1;             ///< seconds of computing in a step; −1: no rank yet
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
