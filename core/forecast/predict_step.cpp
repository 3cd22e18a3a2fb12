#include "core/forecast/predict_step.h"

#include <algorithm>
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/median.h"
#include "core/compile/cluster.h"
#include "core/files/mapped_file.h"
#include "core/forecast/step_trace.h"
#include "core/metrics/run_files.h"
#include "core/partition/partition.h"

namespace shardrun::forecast {
namespace {

namespace json = boost::json;
using Kind = partition::Instruction::Kind;

std::string text_of(const json::value& value) { return json::value_to<std::string>(value); }

/// The instruction that an event of a trace records. Nothing if the event records something else.
std::optional<MeasuredSpan> span_of(const json::object& event) {
  if (event.at("ph") != "X") {
    return std::nullopt;
  }
  const std::string category = text_of(event.at("cat"));
  if (category != "compute" && category != "move" && category != "hook" && category != "start" && category != "wait") {
    return std::nullopt;
  }
  const json::object& arguments = event.at("args").as_object();
  const auto number = [&](const char* argument) {
    return arguments.contains(argument) ? arguments.at(argument).to_number<std::int64_t>() : 0;
  };
  const double begin = event.at("ts").to_number<double>() * 1e-6;
  return MeasuredSpan{.function = text_of(arguments.at("function")),
                      .category = category,
                      .name = text_of(event.at("name")),
                      .flops = number("flops"),
                      .bytes = number("bytes"),
                      .begin = begin,
                      .end = begin + event.at("dur").to_number<double>() * 1e-6};
}

std::string described(const MeasuredSpan& span) {
  const std::string flops = span.flops == 0 ? "" : fmt::format("{} FLOPs, ", span.flops);
  return fmt::format("{} in {} ({}{} bytes)", span.name, span.function, flops, span.bytes);
}

/// Describes an instruction by the names that a trace uses, to compare it with recorded ones. Times are not set.
MeasuredSpan span_of(const ExecutedInstruction& at) {
  return {.function = at.program->function,
          .category = std::string(category_in_trace(*at.instruction)),
          .name = name_in_trace(*at.program, *at.instruction),
          .flops = at.instruction->flops,
          .bytes = bytes_in_trace(*at.program, *at.instruction)};
}

bool is_of(const MeasuredSpan& span, const ExecutedInstruction& at) {
  const MeasuredSpan planned = span_of(at);
  return span.function == planned.function && span.category == planned.category && span.name == planned.name &&
         span.flops == planned.flops && span.bytes == planned.bytes;
}

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

MeasuredSteps::MeasuredSteps(const std::filesystem::path& path, std::string place) : place_(std::move(place)) {
  std::error_code none;
  const bool is_folder = std::filesystem::is_directory(path, none);
  const std::filesystem::path file = is_folder ? metrics::trace_path(path) : path;
  if (!std::filesystem::exists(file, none)) {
    refuse(is_folder ? "there is no trace.json in this folder; run the job with [job] trace = steps, or name another"
                     : "there is no such file or folder; name the output folder of a run with [job] trace = steps");
  }
  read(file);
}

void MeasuredSteps::refuse(const std::string& why) const {
  throw Error(ErrorCode::job, fmt::format("{}: {}", place_, why));
}

void MeasuredSteps::read(const std::filesystem::path& path) {
  try {
    const json::value trace = json::parse(files::MappedFile(path).text());
    for (const json::value& event : trace.at("traceEvents").as_array()) {
      if (std::optional<MeasuredSpan> span = span_of(event.as_object())) {
        const std::int64_t rank = event.at("pid").to_number<std::int64_t>() - 1;
        ranks_[rank][event.at("args").at("step").to_number<std::int64_t>()].push_back(*std::move(span));
      }
    }
  } catch (const Error& error) {
    refuse(error.message());
  } catch (const std::exception&) {  // boost::json threw: the file is not JSON, or not a trace
    refuse(
        fmt::format("{} is no trace of a run; name the output folder of one with [job] trace = steps", path.native()));
  }
}

void MeasuredSteps::require(const RankStep& step) {
  const std::int64_t rank = step.programs->rank;
  const auto measured = ranks_.find(rank);
  if (measured == ranks_.end()) {
    refuse(fmt::format("the trace has nothing of rank {}, which this job needs; ranks in it: {}", rank, ranks_.size()));
  }
  const std::vector<ExecutedInstruction> planned = instructions_of(step);
  const auto hooked = static_cast<std::size_t>(
      std::find_if(planned.begin(), planned.end(),
                   [](const auto& at) { return at.program->function == partition::after_step_function; }) -
      planned.begin());
  const auto without_hook = [&](const auto& traced) {
    return hooked < planned.size() && traced.second.size() == hooked;
  };
  if (std::erase_if(measured->second, without_hook) > 0 && measured->second.empty()) {
    refuse(
        "the trace has no step that the strategy's hook after_step follows, and the plan is of one; trace more steps");
  }
  for (const auto& [number, spans] : measured->second) {
    const std::size_t common = std::min(spans.size(), planned.size());
    std::size_t same = 0;
    while (same < common && is_of(spans[same], planned[same])) {
      ++same;
    }
    if (same < std::max(spans.size(), planned.size())) {
      refuse(fmt::format(
          "it is the trace of another job: in step {} rank {} executed {} instructions, of this job's {} the first {}; "
          "then the job has {}, the trace {}. Trace a run of this job, with the same ranks, strategy, batch and "
          "element types",
          number, rank, spans.size(), planned.size(), same,
          same < planned.size() ? described(span_of(planned[same])) : "no more",
          same < spans.size() ? described(spans[same]) : "no more"));
    }
  }
}

double MeasuredSteps::computing(std::int64_t rank) const {
  std::vector<double> sums;
  for (const auto& [number, spans] : ranks_.at(rank)) {
    double sum = 0;
    for (const MeasuredSpan& span : spans) {
      sum += span.category == "start" || span.category == "wait" ? 0 : span.end - span.begin;
    }
    sums.push_back(sum);
  }
  return median(std::move(sums));
}

std::vector<std::vector<double>> MeasuredSteps::medians(const std::vector<RankStep>& ranks,
                                                        mesh::AxisId pipeline_axis) const {
  std::vector<std::vector<ExecutedInstruction>> instructions;
  std::vector<const Steps*> steps;
  for (const RankStep& rank : ranks) {
    instructions.push_back(instructions_of(rank));
    steps.push_back(&ranks_.at(rank.programs->rank));
  }
  const Meetings meetings = meetings_of(instructions, pipeline_axis);
  std::vector<std::int64_t> common;
  for (const auto& step : *steps.front()) {
    if (std::all_of(steps.begin(), steps.end(), [&](const Steps* other) { return other->contains(step.first); })) {
      common.push_back(step.first);
    }
  }
  if (common.empty()) {
    refuse("the trace has no step that the first ranks of all stages have recorded");
  }
  const auto taken = [&](std::size_t rank, std::size_t i, std::int64_t number) {
    const MeasuredSpan& span = steps[rank]->at(number)[i];
    double begin = span.begin;
    if (instructions[rank][i].instruction->kind == Kind::wait) {
      for (const Meeting::Side& side : meetings.all[meetings.at[rank][i]].sides) {
        begin = std::max(begin, steps[side.rank]->at(number)[side.start].begin);
      }
    }
    return std::max(0.0, span.end - begin);
  };
  std::vector<std::vector<double>> medians(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t i = 0; i < instructions[rank].size(); ++i) {
      std::vector<double> values;
      for (const std::int64_t number : common) {
        values.push_back(taken(rank, i, number));
      }
      medians[rank].push_back(median(std::move(values)));
    }
  }
  return medians;
}

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
