#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/history.h"
#include "core/checkpoint/saved_state.h"
#include "core/data/feed.h"
#include "core/files/folder.h"
#include "core/metrics/run_files.h"
#include "core/report/run_pictures.h"
#include "core/train/rank_task.h"
#include "core/train/running_engine.h"

namespace shardrun::train {
namespace {

class IterateTask : private RankTask {
 public:
  using RankTask::RankTask;

  metrics::Summary run(metrics::Summary& failed) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    prepare(executor);
    record_.now_at("setting first values");
    std::optional<RunningEngine> engine;
    if (compiled_.engine != nullptr) {
      engine.emplace(job_, compiled_, settings_.link, executor);
    } else if (compiled_.resumed != nullptr) {
      runtime::initialize(compiled_.graph, job_.seed, executor);
    } else if (const checkpoint::SavedState saved = checkpoint::initialize_states(job_, compiled_.graph, executor);
               saved != compiled_.saved_state) {
      throw Error(ErrorCode::io, fmt::format("{}: [iterate] from: '{}' was replaced while this job was starting: give "
                                             "the job a file that nobody writes to, and start it again",
                                             job_.where("iterate", "from"), job_.iterate.from.native()));
    }
    return guarded(executor, failed, [&] {
      if (engine && compiled_.resumed == nullptr) {
        engine->instance().start();
      }
      resume(executor);
      begin_steps();
      const StepsUnderWay from_here_on;
      const int signal = iterate_steps(executor, step_of(executor, engine));
      if (engine) {
        engine->ranks().require_no_messages();
      }
      if (ends_with_checkpoint(signal)) {
        save_at_end(signal);
        return signal;
      }
      check_before_save(false);
      save_results(files(metrics::state_path(job_.output), first_.step + record_.summary.steps, ""), executor);
      draw(first_.step + record_.summary.steps, true);
      save_at_end(signal);
      return signal;
    });
  }

 private:
  /// The files of the fields after this number of steps, and of the last step's outputs.
  [[nodiscard]] std::vector<checkpoint::StateFile> files(const std::filesystem::path& state, std::int64_t steps,
                                                         std::string_view suffix) const {
    if (compiled_.engine != nullptr) {
      return {compile::engine_file(state, *compiled_.engine, steps)};
    }
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

  /// Draws pictures of what was saved after this number of steps. The first rank draws, from the files; the others wait
  /// for as long as it takes.
  void draw(std::int64_t steps, bool is_last) {
    if (job_.iterate.pictures.empty()) {
      return;
    }
    if (record_.is_first()) {
      draw_pictures(steps, is_last);
    }
    settings_.link.barrier();
  }

  void draw_pictures(std::int64_t steps, bool is_last) {
    for (const std::string& name : job_.iterate.pictures) {
      const graph::StateId id = compiled_.graph.find_state(name);  // nothing if this rank of an engine holds no part
      if (id.exists() && compiled_.graph.states[id].kind == graph::StateKind::output && steps == first_.step) {
        continue;  // outputs exist only after a step
      }
      now_at("drawing pictures", steps, is_last ? "drawing " + name : "");
      settings_.folder.require_owned();
      files::create_folders(metrics::pictures_path(job_.output), "the folder of pictures");
      const checkpoint::History history(job_.output, name, checkpoint::History::From::results);
      const auto path = [&](std::optional<std::int64_t> step, std::string_view extension) {
        return metrics::picture_path(job_.output, name, step, extension);
      };
      report::draw_step(history, steps, {}, path(is_last ? std::nullopt : std::optional(steps), ".png"));
      if (is_last && history.steps().size() > 1) {
        report::draw_animation(history, {}, report::usual_seconds, path(std::nullopt, ".gif"));
      }
    }
  }

  /// Returns the function that computes the step with the given number, counted from 0.
  [[nodiscard]] std::function<void(std::int64_t step)> step_of(runtime::Executor& executor,
                                                               std::optional<RunningEngine>& engine) const {
    if (engine) {
      return [&engine, &executor](std::int64_t step) {
        const runtime::TimedCall call(&executor, runtime::Timeline::Call::Kind::engine, "step");
        engine->instance().step(step);
      };
    }
    return [this, &executor, program = executor.find(graph::Role::once)](std::int64_t step) {
      const std::int64_t sample = checkpoint::samples_after(job_, first_, step);
      executor.run(program, feed_iteration(job_, compiled_, executor, program, step, sample));
    };
  }

  int iterate_steps(runtime::Executor& executor, const std::function<void(std::int64_t step)>& compute) {
    const bool is_late = !compiled_.device->is_addressable();
    std::array<device::Event, 2> ends;
    const auto end = [&](const UnderWay& under_way) {
      executor.reach(ends[static_cast<std::size_t>(under_way.step % 2)]);
      record_step(executor, under_way.step, under_way.meter.end());
    };
    int signal = 0;
    for (std::int64_t step = first_.step; step < last_step_ && signal == 0; ++step) {
      now_at("iterating", step + 1, step == first_.step ? metrics::first_step_activity : "");
      const auto run = [&] { compute(step); };
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

  /// Runs a step to its end, and then what is due after it: lines, saves and checks.
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
    std::vector<metrics::JsonField> fields = {{"step", step + 1}, {"step_s", measured.duration}};
    if (compiled_.engine == nullptr) {  // what an engine itself computes and sends is not known
      fields.push_back({"bandwidth", rates.bandwidth()});
      fields.push_back({"flops_per_s", rates.flops_per_s()});
    }
    if (const std::optional<double> share = utilisation(rates)) {
      fields.push_back({"utilisation", *share});
    }
    record_.write(fields);
    record_.count_step(measured.duration);
    record_.summary.ranks[0].sent_bytes = measured.sent;
    if (saves(step)) {
      save(files(metrics::state_path(job_.output, step + 1), step + 1, fmt::format("-{:06}", step + 1)), executor);
      draw(step + 1, false);
    }
    record_.update({.step = step + 1, .rate = 1 / std::max(measured.duration, 1e-12)});
  }
};

}  // namespace

device::Scalars feed_iteration(const job::Job& job, const compile::Compiled& compiled, runtime::Executor& executor,
                               std::size_t program, std::int64_t step, std::int64_t first_sample) {
  if (const std::optional<device::TensorView> inputs = executor.find_input(program, "inputs", 0)) {
    executor.add_input_seconds(data::feed_training(*compiled.dataset, job.seed, first_sample,
                                                   executor.host(device::Access::write), *inputs,
                                                   *executor.find_input(program, "targets", 0)));
  }
  return {.seed = job.seed, .step = step, .first_sample = first_sample};
}

metrics::Summary run_iterating(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                               metrics::Summary& failed) {
  return IterateTask(job, compiled, settings).run(failed);
}

}  // namespace shardrun::train
