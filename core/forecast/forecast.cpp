#include "core/forecast/forecast.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "core/base/stop.h"
#include "core/checkpoint/rank_file.h"
#include "core/partition/alike.h"
#include "core/partition/launch_order.h"
#include "core/workload/program.h"

namespace shardrun::forecast {
namespace {

RankForecast forecast_of(const compile::Compiled& compiled, const partition::Programs& programs,
                         const std::vector<std::size_t>& executed) {
  const mesh::Coordinates at = mesh::coordinates_of(programs.mesh, programs.rank);
  RankForecast ranks{.stage = compiled.partition.stage_at(at), .memory = programs.memory};
  for (const std::size_t program : executed) {
    for (const partition::Instruction& instruction : programs.programs[program].instructions) {
      ranks.flops += static_cast<double>(instruction.flops);
      ranks.work += instruction.phase == graph::Phase::update ? 0 : static_cast<double>(instruction.flops);
    }
  }
  const auto largest = std::max_element(
      programs.programs.begin(), programs.programs.end(),
      [](const partition::Program& a, const partition::Program& b) { return a.transient_bytes < b.transient_bytes; });
  if (largest != programs.programs.end() && !largest->instructions.empty()) {
    ranks.busiest_function = largest->function;
    ranks.busiest_instruction = largest
                                    ->instructions[std::min(static_cast<std::size_t>(largest->peak_instruction),
                                                            largest->instructions.size() - 1)]
                                    .name;
  }
  return ranks;
}

/// Bytes of the copies that ranks make of their states to save them; 0 for each if they make none.
std::function<std::uint64_t(std::int64_t rank)> snapshots_of(const job::Job& job, const compile::Compiled& compiled) {
  if (!checkpoint::takes_snapshots(job)) {
    return [](std::int64_t) { return std::uint64_t{0}; };
  }
  return [contents = compile::contents_of(job, compiled)](std::int64_t rank) {
    return checkpoint::RankFile(contents, rank).snapshot_bytes();
  };
}

/// The bytes that ranks with alike programs send.
struct SentTables {
  partition::SentTable step;
  std::map<std::string, partition::SentTable> programs;  ///< see RankForecast::programs
};

SentTables sent_tables(const compile::Compiled& compiled, const partition::Programs& programs,
                       const std::vector<std::size_t>& executed) {
  SentTables tables{.step = partition::sent_table(programs, executed), .programs = {}};
  for (const std::string_view function :
       {workload::prefill_function, workload::score_function, workload::decode_function}) {
    if (programs.has(function)) {
      const bool is_step = function == workload::decode_function;
      const std::int64_t rows = is_step ? compiled.evaluation_rows.front() : 1;
      tables.programs.emplace(function, partition::sent_table(programs, programs.find_calls(function, {rows})));
    }
  }
  return tables;
}

/// Adds a group of ranks whose programs are alike, divided into groups that send and save the same bytes.
void add_ranks(std::vector<RankForecast>& all, RankForecast kind, const std::vector<std::int64_t>& members,
               const SentTables& tables, const mesh::Mesh& mesh,
               const std::function<std::uint64_t(std::int64_t rank)>& snapshot_of) {
  for (const std::int64_t rank : members) {
    const mesh::Coordinates at = mesh::coordinates_of(mesh, rank);
    kind.sent = partition::sent_of(tables.step, at);
    for (const auto& [function, table] : tables.programs) {
      kind.programs[function] = partition::sent_of(table, at);
    }
    kind.snapshot = snapshot_of(rank);
    const auto same = std::find_if(all.begin(), all.end(), [&](const RankForecast& each) {
      return each.stage == kind.stage && each.memory == kind.memory && each.flops == kind.flops &&
             each.work == kind.work && each.snapshot == kind.snapshot && each.sent == kind.sent &&
             each.programs == kind.programs;
    });
    if (same != all.end()) {
      same->members.push_back(rank);
    } else {
      all.push_back(kind);
      all.back().members = {rank};
    }
  }
}

}  // namespace

Forecast forecast(const job::Job& job, const compile::Compiled& compiled) {
  const partition::Partition& partition = compiled.partition;
  Forecast result;
  const std::function<std::uint64_t(std::int64_t rank)> snapshot_of = snapshots_of(job, compiled);
  std::optional<StepPredictor> predictor;
  std::optional<StepPredictor> reading;  // of prompts
  if (job.cluster.flops > 0 || !job.cluster.measured.empty()) {
    predictor.emplace(job, compiled);
  }
  if (predictor && job::generates(job) && job.cluster.measured.empty()) {
    reading.emplace(job, compiled);
  }
  partition::LaunchOrders launch_orders;
  for (const partition::StageId stage : partition.pipeline.stage_ids()) {
    const std::shared_ptr<const partition::StageFunctions> functions = compile::functions_of_stage(compiled, stage);
    for (const std::vector<std::int64_t>& alike : partition::alike_ranks(compiled.graph, partition, *functions)) {
      stop_point();  // throws if the process was asked to stop: a deep pipeline takes seconds
      const bool is_compiled = alike.front() == compiled.programs.rank;
      partition::Programs programs =
          is_compiled ? compiled.programs
                      : compile::programs_of_rank(job, compiled, alike.front(), *compiled.device, *functions);
      launch_orders.add(stage, programs);
      const std::vector<std::size_t> executed = compile::programs_of_step(compiled, programs);
      add_ranks(result.ranks, forecast_of(compiled, programs, executed), alike,
                sent_tables(compiled, programs, executed), programs.mesh, snapshot_of);
      if (reading) {
        reading->add(programs, programs.find_calls(workload::prefill_function, {1}));
      }
      if (predictor) {
        predictor->add(std::move(programs), executed);
      }
    }
  }
  launch_orders.check(partition.pipeline);
  for (RankForecast& ranks : result.ranks) {
    std::sort(ranks.members.begin(), ranks.members.end());
  }
  std::sort(result.ranks.begin(), result.ranks.end(),
            [](const RankForecast& a, const RankForecast& b) { return a.members.front() < b.members.front(); });
  if (predictor) {
    result.step = predictor->forecast();
  }
  if (reading) {
    result.step->chunk_s = reading->forecast().prediction.seconds;
  }
  if (partition.pipeline.exists()) {
    const auto cost = [&](const plan::Action& action) {
      return result.step ? result.step->prediction.cost_of(action) : unit_cost(action);
    };
    result.timeline = timeline_of(partition.pipeline, cost);
  }
  return result;
}

}  // namespace shardrun::forecast
