#include "core/verify/verify.h"

#include "core/verify/compare.h"

namespace shardrun::verify {

Report verify_interpreted(const Workload& workload, const partition::Partition& partition,
                          const InterpretedSettings& settings) {
  Comparison comparison(workload, partition.placements.mesh.ranks(), settings.threads);
  interpret(workload, partition, settings, [&](std::int64_t step, Moment moment, runtime::Interpreter& ranks) {
    comparison.add(step, moment, [&](std::int64_t rank) {
      return take_snapshot(workload.graph, ranks.rank(static_cast<std::size_t>(rank)), moment);
    });
  });
  return comparison.report();
}

Report verify_snapshots(const Workload& workload, const Recorded& recorded) {
  Comparison comparison(workload, recorded.ranks, recorded.threads, recorded.stops);
  const auto add = [&](std::int64_t step, Moment moment) {
    comparison.add(step, moment, [&](std::int64_t rank) {
      return read_snapshot(recorded.folder, step, moment, rank, workload.graph);
    });
  };
  for (std::int64_t step = 0; step < recorded.steps; ++step) {
    if (recorded.on_step) {
      recorded.on_step(step);
    }
    add(step, Moment::begin);
    if (workload.trains()) {
      add(step, Moment::gradients);
    }
    add(step, Moment::end);
  }
  const std::int64_t last = recorded.steps - 1;
  if (workload.evaluates() && std::filesystem::exists(snapshot_path(recorded.folder, last, Moment::evaluation, 0))) {
    add(last, Moment::evaluation);
  }
  return comparison.report();
}

Report verify_snapshots(const std::filesystem::path& folder, const job::Job& job, const task::Compiled& compiled,
                        std::int64_t steps, std::function<bool()> stops,
                        std::function<void(std::int64_t step)> on_step) {
  return verify_snapshots(workload_of(job, compiled), {.folder = folder,
                                                       .ranks = compiled.partition.placements.mesh.ranks(),
                                                       .steps = steps,
                                                       .threads = task::threads_of(job),
                                                       .stops = std::move(stops),
                                                       .on_step = std::move(on_step)});
}

}  // namespace shardrun::verify
