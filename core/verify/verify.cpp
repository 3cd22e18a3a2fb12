#include "core/verify/verify.h"

#include <fmt/format.h>

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
  Comparison comparison(workload, recorded.ranks, recorded.threads, recorded.selection, recorded.stops, recorded.meter);
  const auto add = [&](std::int64_t step, Moment moment) {
    comparison.add(step, moment, [&](std::int64_t rank) {
      return read_snapshot(recorded.folder, step, moment, rank, workload.graph);
    });
  };
  const auto say = [&](const std::string& what) {
    if (recorded.meter != nullptr) {
      recorded.meter->at(what);
    }
  };
  if (recorded.meter != nullptr) {
    recorded.meter->expect(comparison.work(recorded.steps));
  }
  for (std::int64_t step = 0; step < recorded.steps; ++step) {
    say(fmt::format("step {}/{}", step + 1, recorded.steps));
    if (step == 0 || !workload.predicts()) {
      add(step, Moment::begin);
    }
    if (workload.trains()) {
      add(step, Moment::gradients);
    }
    add(step, Moment::end);
  }
  const std::int64_t last = recorded.steps - 1;
  if (workload.evaluates() && std::filesystem::exists(snapshot_path(recorded.folder, last, Moment::evaluation, 0))) {
    say("validation");
    add(last, Moment::evaluation);
  }
  return comparison.report();
}

}  // namespace shardrun::verify
