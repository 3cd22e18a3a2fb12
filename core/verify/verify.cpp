#include "core/verify/verify.h"

#include <fmt/format.h>

#include "core/verify/compare.h"

namespace shardrun::verify {
namespace {

/// Runs calls of a function on all ranks. `calls`: all calls of that function in a step.
void run(const Workload& workload, const std::vector<Call>& calls, runtime::Interpreter& ranks) {
  std::vector<std::int64_t> rows;
  for (const Call& call : calls) {
    rows.push_back(call.rows);
  }
  std::size_t first = 0;
  for (const std::size_t program : ranks.rank(0).find_calls(calls.front().function, rows)) {
    std::vector<device::Scalars> scalars;
    const std::size_t count = ranks.rank(0).call_rows(program).size();
    for (std::size_t c = 0; c < count; ++c) {
      for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
        feed(workload, calls[first + c], ranks.rank(rank), program, c);
      }
      scalars.push_back(calls[first + c].scalars);
    }
    first += count;
    ranks.run(program, scalars);
  }
}

}  // namespace

void interpret(const Workload& workload, const partition::Partition& partition, const InterpretedSettings& settings,
               const AtMoment& at_moment) {
  runtime::Interpreter ranks(workload.graph, partition, device::Device::find(settings.device), settings.threads,
                             settings.fault, settings.hooks);
  for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
    runtime::initialize(workload.graph, workload.seed, ranks.rank(rank));
    if (workload.weights != nullptr) {
      checkpoint::load_parameters(workload.weights->source(), workload.graph, ranks.rank(rank));
    }
  }
  for (std::int64_t step = 0; step < settings.steps; ++step) {
    if (step == 0 || !workload.predicts()) {
      at_moment(step, Moment::begin, ranks);
    }
    if (workload.trains()) {
      run(workload, gradient_calls(workload, step), ranks);
      at_moment(step, Moment::gradients, ranks);
    }
    run(workload, {update_call(workload, step)}, ranks);
    if (partition.hook_follows(step)) {
      ranks.run(partition::after_step_function, 0, true, {.seed = workload.seed, .step = step});
    }
    at_moment(step, Moment::end, ranks);
  }
  if (workload.evaluates() && settings.steps > 0) {
    run(workload, evaluation_calls(workload), ranks);
    at_moment(settings.steps - 1, Moment::evaluation, ranks);
  }
}

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
