#include "core/verify/verify.h"

#include "core/verify/compare.h"

namespace shardrun::verify {
namespace {

/// All ranks of a workload in this process.
class InterpretedRun {
 public:
  InterpretedRun(const Workload& workload, const partition::Partition& partition, const InterpretedSettings& settings)
      : workload_(workload),
        interpreter_(workload.graph, partition, device::Device::find(settings.device), settings.threads,
                     settings.fault) {}

  void initialize() {
    for (std::size_t rank = 0; rank < interpreter_.ranks(); ++rank) {
      runtime::Executor& executor = interpreter_.rank(rank);
      for (std::size_t s = 0; s < workload_.graph.states.size(); ++s) {
        runtime::initialize(executor.state(static_cast<graph::StateId>(s)),
                            executor.device().element_bytes(graph::DType::f32), workload_.graph.states[s],
                            workload_.seed, executor.threads());
      }
    }
  }

  void run(const Call& call) {
    for (std::size_t rank = 0; rank < interpreter_.ranks(); ++rank) {
      feed(workload_, call, interpreter_.rank(rank));
    }
    interpreter_.run(call.function, call.rows, call.last, call.scalars);
  }

  void run(const std::vector<Call>& calls) {
    for (const Call& call : calls) {
      run(call);
    }
  }

  [[nodiscard]] SnapshotOf at(Moment moment) {
    return [this, moment](std::int64_t rank) {
      return take_snapshot(workload_.graph, interpreter_.rank(static_cast<std::size_t>(rank)), moment);
    };
  }

  [[nodiscard]] std::int64_t ranks() const { return static_cast<std::int64_t>(interpreter_.ranks()); }

 private:
  const Workload& workload_;
  runtime::Interpreter interpreter_;
};

}  // namespace

Report verify_interpreted(const Workload& workload, const partition::Partition& partition,
                          const InterpretedSettings& settings) {
  InterpretedRun run(workload, partition, settings);
  Comparison comparison(workload, run.ranks(), settings.threads);
  run.initialize();
  for (std::int64_t step = 0; step < settings.steps; ++step) {
    comparison.add(step, Moment::begin, run.at(Moment::begin));
    if (!workload.microbatch_rows.empty()) {
      run.run(gradient_calls(workload, step));
      comparison.add(step, Moment::gradients, run.at(Moment::gradients));
    }
    run.run(update_call(workload, step));
    comparison.add(step, Moment::end, run.at(Moment::end));
  }
  if (!workload.evaluation_rows.empty() && settings.steps > 0) {
    run.run(evaluation_calls(workload));
    comparison.add(settings.steps - 1, Moment::evaluation, run.at(Moment::evaluation));
  }
  return comparison.report();
}

Report verify_snapshots(const std::filesystem::path& folder, const job::Job& job, const task::Compiled& compiled,
                        std::int64_t steps) {
  const Workload workload = workload_of(job, compiled);
  Comparison comparison(workload, compiled.partition.placements.mesh.ranks(), task::threads_of(job));
  const auto add = [&](std::int64_t step, Moment moment) {
    comparison.add(step, moment,
                   [&](std::int64_t rank) { return read_snapshot(folder, step, moment, rank, compiled.graph); });
  };
  for (std::int64_t step = 0; step < steps; ++step) {
    add(step, Moment::begin);
    if (!workload.microbatch_rows.empty()) {
      add(step, Moment::gradients);
    }
    add(step, Moment::end);
  }
  if (steps > 0 && std::filesystem::exists(snapshot_path(folder, steps - 1, Moment::evaluation, 0))) {
    add(steps - 1, Moment::evaluation);
  }
  return comparison.report();
}

}  // namespace shardrun::verify
