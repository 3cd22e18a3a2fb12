#include "core/forecast/predict_step.h"

#include <algorithm>
#include <fmt/format.h>

#include <set>
#include <utility>

#include "core/compile/cluster.h"

namespace shardrun::forecast {
namespace {

using Kind = partition::Instruction::Kind;

/// A copy with only what predict() reads: the order of instructions, and which share a transfer. Because it is a copy,
/// the original can be freed as a whole: small remains would keep its memory from being reused.
partition::Programs without_operands(const partition::Programs& programs, const std::vector<std::size_t>& executed) {
  partition::Programs kept{
      .device = programs.device, .threads = programs.threads, .mesh = programs.mesh, .rank = programs.rank};
  kept.programs.resize(programs.programs.size());
  for (const std::size_t number : std::set(executed.begin(), executed.end())) {
    const partition::Program& program = programs.programs[number];
    partition::Program& copy = kept.programs[number];
    copy.function = program.function;
    copy.transfers = program.transfers;
    copy.instructions.reserve(program.instructions.size());
    for (const partition::Instruction& at : program.instructions) {
      copy.instructions.push_back({.kind = at.kind,
                                   .op = at.op,
                                   .phase = at.phase,
                                   .layer = at.layer,
                                   .transfer = at.transfer,
                                   .call = at.call,
                                   .action = at.action});
    }
  }
  return kept;
}

}  // namespace

StepPredictor::StepPredictor(const job::Job& job, const compile::Compiled& compiled)
    : job_(job),
      compiled_(compiled),
      axes_(compile::axis_rates(job, compiled.partition.placements.mesh)),
      stages_(compiled.partition.pipeline.stages()) {
  if (!job.cluster.measured.empty()) {
    const std::string path = job.cluster.measured.native();
    measured_.emplace(path, fmt::format("{}: [cluster] measured = {}", job.where("cluster", "measured"), path));
  }
}

StepCosts StepPredictor::costs_of(const std::vector<RankStep>& ranks) const {
  StepCosts costs{.seconds = {}, .axes = axes_};
  if (measured_) {
    costs.seconds = measured_->medians(ranks, compiled_.partition.pipeline.axis);
    return costs;
  }
  for (const Busiest& stage : stages_) {
    costs.seconds.push_back(stage.seconds);
  }
  return costs;
}

std::vector<double> StepPredictor::compute_seconds(const RankStep& step) const {
  const ComputeRate rate{job_.cluster.flops, job_.cluster.memory_bandwidth};
  std::vector<double> seconds;
  for (const ExecutedInstruction& at : instructions_of(step)) {
    seconds.push_back(computes(*at.instruction) ? forecast::compute_seconds(at, rate) : 0);
  }
  return seconds;
}

double StepPredictor::busy_seconds(const RankStep& step, const std::vector<double>& seconds) const {
  if (measured_) {
    return measured_->computing(step.programs->rank);
  }
  double busy = 0;
  std::size_t number = 0;
  for (const ExecutedInstruction& at : instructions_of(step)) {
    busy += seconds[number++];
    if (at.instruction->kind == Kind::start) {
      const partition::Transfer& transfer = at.transfer();
      const auto& axis = axes_[transfer.axis];
      busy += axis ? transfer_seconds(transfer, *step.programs, *axis) : 0;
    }
  }
  return busy;
}

void StepPredictor::add(partition::Programs programs, const std::vector<std::size_t>& executed) {
  const RankStep step{&programs, executed};
  if (measured_) {
    measured_->require(step);
  }
  std::vector<double> seconds = measured_ ? std::vector<double>{} : compute_seconds(step);
  const double busy = busy_seconds(step, seconds);
  const partition::StageId stage = compiled_.partition.stage_at(mesh::coordinates_of(programs.mesh, programs.rank));
  Busiest& busiest = stages_[stage];
  if (busy > busiest.busy) {
    busiest = {without_operands(programs, executed), executed, std::move(seconds), busy};
  }
}

double StepPredictor::model_flops() const {
  if (job_.task != job::Task::train || job_.train.remat == job::Remat::none) {
    return compile::flops_per_step(compiled_);
  }
  return compile::flops_per_step(compile::graph_without_remat(job_, compiled_), compiled_.microbatch_rows);
}

StepForecast StepPredictor::forecast() const {
  std::vector<RankStep> ranks;
  StepForecast forecast{.measured = measured_.has_value()};
  for (const Busiest& stage : stages_) {
    ranks.push_back({&stage.programs, stage.executed});
    forecast.ranks.push_back(stage.programs.rank);
  }
  forecast.prediction = predict(ranks, compiled_.partition.pipeline, costs_of(ranks));
  double seconds = forecast.prediction.seconds;
  if (compiled_.partition
          .overlaps) {  // a call ends as often as the busiest stage does its part, if there are groups enough
    seconds /= static_cast<double>(compiled_.groups);
    for (const StagePrediction& stage : forecast.prediction.stages) {
      seconds = std::max(seconds, stage.compute + stage.exposed);
    }
  }
  if (seconds > 0) {
    forecast.model_flops_per_s = model_flops() / static_cast<double>(job_.ranks) / seconds;
    if (job_.task == job::Task::train) {
      forecast.samples_per_s = static_cast<double>(job_.data.batch) / seconds;
    } else if (job_.task == job::Task::infer) {
      forecast.samples_per_s = static_cast<double>(compiled_.evaluation_rows.front()) / seconds;
    }
    if (job::generates(job_)) {
      forecast.tokens_per_s = forecast.samples_per_s;
    }
    if (job_.task == job::Task::train && job_.data.arrays.empty() && compiled_.model.takes_tokens &&
        job_.model.options.has("context")) {
      forecast.tokens_per_s = forecast.samples_per_s * static_cast<double>(job_.model.options.integer("context"));
    }
  }
  if (job_.cluster.flops > 0) {
    forecast.utilisation = forecast.model_flops_per_s / job_.cluster.flops;
  }
  return forecast;
}

}  // namespace shardrun::forecast
