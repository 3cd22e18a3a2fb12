#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/saved_state.h"
#include "core/metrics/run_files.h"
#include "core/train/rank_task.h"

namespace shardrun::train {
namespace {

class IterateTask : private RankTask {
 public:
  using RankTask::RankTask;

  metrics::Summary run(metrics::Summary& failed) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    prepare(executor);
    record_.now_at("setting first values");
    if (compiled_.resumed != nullptr) {
      runtime::initialize(compiled_.graph, job_.seed, executor);
    } else if (const checkpoint::SavedState saved = checkpoint::initialize_states(job_, compiled_.graph, executor);
               saved != compiled_.saved_state) {
      throw Error(ErrorCode::io,
                  fmt::format("{}: [iterate] from: '{}' was replaced while this job was starting: give "
                              "the job a file that nobody writes to, and start it again",
                              job_.where("iterate", "from"), checkpoint::saved_state_file(job_).native()));
    }
    return guarded(executor, failed, [&] {
      resume(executor);
      begin_steps();
      const StepsUnderWay from_here_on;
      const int signal = iterate_steps(executor);
      if (ends_with_checkpoint(signal)) {
        save_at_end(signal);
        return signal;
      }
      check_before_save(false);
      save_results(files(metrics::state_path(job_.output), first_.step + record_.summary.steps, ""), executor);
      save_at_end(signal);
      return signal;
    });
  }

 private:
  /// The fields after so many steps, and the outputs of the last of these.
  [[nodiscard]] std::vector<checkpoint::StateFile> files(const std::filesystem::path& state, std::int64_t steps,
                                                         std::string_view suffix) const {
    std::vector<checkpoint::StateFile> all;
    if (steps > first_.step) {
      all = checkpoint::output_files(metrics::outputs_path(job_.output), compiled_.graph, suffix);
    }
    all.push_back(
        checkpoint::state_file(state, compiled_.graph, graph::StateKind::field, checkpoint::describe_state(steps)));
    return all;
  }

  [[nodiscard]] bool saves(std::int64_t step) const {
    return job_.iterate.save_every > 0 && (step + 1) % job_.iterate.save_every == 0;
  }

  int iterate_steps(runtime::Executor& executor) {
    const std::size_t program = executor.find(graph::Role::once);
    const bool is_late = !compiled_.device->is_addressable();
    std::array<device::Event, 2> ends;
    const auto end = [&](const UnderWay& under_way) {
      executor.reach(ends[static_cast<std::size_t>(under_way.step % 2)]);
      record_step(executor, under_way.step, under_way.meter.end());
    };
    int signal = 0;
    for (std::int64_t step = first_.step; step < last_step_ && signal == 0; ++step) {
      now_at("iterating", step + 1, step == first_.step ? metrics::first_step_activity : "");
      const auto run = [&] { executor.run(program, {.seed = job_.seed, .step = step}); };
      if (is_late && !saves(step) && !ends_at_once(step)) {
        begin_step(step, executor, [&] {
          run();
          ends[static_cast<std::size_t>(step % 2)] = executor.mark();
        });
        signal = end_steps(1, end);
      } else {
        signal = end_steps(0, end);
        signal = signal != 0 ? signal : whole_step(executor, step, run);
      }
    }
    record_.finish_progress();
    return signal;
  }

  /// Runs a step to its end, with the lines, saves and checks that are due after it.
  template <typename Run>
  int whole_step(runtime::Executor& executor, std::int64_t step, const Run& run) {
    const StepMeter meter(executor);
    traced(step, executor, run);
    executor.queue().finish();
    const StepMeasure measured = meter.end();
    write_trace_if_due();
    check_replicas_after(step, saves(step));
    record_step(executor, step, measured);
    return between_steps(step, 0);
  }

  void record_step(const runtime::Executor& executor, std::int64_t step, const StepMeasure& measured) {
    const metrics::RankRates rates = rates_of(step, measured);
    std::vector<metrics::JsonField> fields = {{"step", step + 1},
                                              {"step_s", measured.duration},
                                              {"bandwidth", rates.bandwidth()},
                                              {"flops_per_s", rates.flops_per_s()}};
    if (const std::optional<double> share = utilisation(rates)) {
      fields.push_back({"utilisation", *share});
    }
    record_.write(fields);
    record_.count_step(measured.duration);
    record_.summary.ranks[0].sent_bytes = measured.sent;
    if (saves(step)) {
      save(files(metrics::state_path(job_.output, step + 1), step + 1, fmt::format("-{:06}", step + 1)), executor);
    }
    record_.update({.step = step + 1, .rate = 1 / std::max(measured.duration, 1e-12)});
  }
};

}  // namespace

metrics::Summary run_iterating(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                               metrics::Summary& failed) {
  return IterateTask(job, compiled, settings).run(failed);
}

}  // namespace shardrun::train
