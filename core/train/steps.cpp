#include "core/train/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/saved_state.h"
#include "core/checkpoint/weights.h"
#include "core/files/atomic_file.h"
#include "core/metrics/human.h"
#include "core/metrics/rundir.h"
#include "core/train/replicas.h"
#include "core/train/sampling.h"
#include "core/train/tracer.h"
#include "core/train/training.h"

namespace shardrun::train {
namespace {

using Clock = std::chrono::steady_clock;

std::string profile_table(const std::vector<runtime::OpTime>& times) {
  double total = 0;
  for (const runtime::OpTime& time : times) {
    total += time.seconds;
  }
  std::string text =
      fmt::format("{:<10} {:<28} {:>9} {:>10} {:>7} {:>9}\n", "function", "op", "calls", "seconds", "share", "GFLOP/s");
  for (const runtime::OpTime& time : times) {
    if (time.calls > 0) {
      text += fmt::format("{:<10} {:<28} {:>9} {:>10.3f} {:>6.1f}% {:>9.1f}\n", time.function, time.op, time.calls,
                          time.seconds, 100 * time.seconds / std::max(total, 1e-12),
                          static_cast<double>(time.flops) / std::max(time.seconds, 1e-12) / 1e9);
    }
  }
  return text;
}

/// Steps that a median should not count: caches, page faults and the libraries' first calls.
constexpr std::int64_t warm_up_steps = 2;

/// `after` − `before`: what was sent in between.
partition::SentBytes difference(const partition::SentBytes& after, const partition::SentBytes& before) {
  partition::SentBytes sent;
  for (const auto& [axis, collectives] : after) {
    for (const auto& [collective, bytes] : collectives) {
      const auto old_axis = before.find(axis);
      const std::uint64_t old = old_axis == before.end() ? 0 : old_axis->second.at(collective);
      if (bytes > old) {
        sent[axis][collective] = bytes - old;
      }
    }
  }
  return sent;
}

/// Adds the step to errors of operations between ranks.
template <typename Step>
auto naming_step(std::int64_t step, const Step& run) {
  try {
    return run();
  } catch (const Error& error) {
    switch (error.code()) {
      case ErrorCode::transport:
      case ErrorCode::timeout:
      case ErrorCode::aborted:
      case ErrorCode::peer_lost:
      case ErrorCode::plugin:
        throw Error(error.code(), fmt::format("step {}: {}", step + 1, error.message()), error.awaited());
      default: throw;
    }
  }
}

/// One rank's steps, for either task.
class Steps {
 public:
  Steps(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings)
      : job_(job),
        compiled_(compiled),
        settings_(settings),
        record_(settings.display, settings.folder, settings.link == nullptr ? 0 : settings.link->rank(),
                planned_summary(compiled)) {
    if (job.trace == job::Trace::steps) {
      tracer_.emplace(job, compiled);
    }
  }

  metrics::Summary train(metrics::Summary& failed) {
    Training training(job_, compiled_, agreement(), made_of_all());
    prepare(training.executor());
    return guarded(training.executor(), failed, [&] {
      record_.now_at("setting first values");
      training.initialize();
      await_ranks();
      const StepsUnderWay from_here_on;
      const int signal = train_steps(training);
      check_before_save(training.finish());
      save_results(metrics::weights_path(job_.output), graph::StateKind::parameter, training.executor(),
                   checkpoint::describe_model(job_.model, compiled_.settings, compiled_.dataset->tokenizer()));
      return signal == 0 ? print_sample(training) : signal;
    });
  }

  metrics::Summary iterate(metrics::Summary& failed) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    prepare(executor);
    record_.now_at("setting first values");
    if (const checkpoint::SavedState saved = checkpoint::initialize_states(job_, compiled_.graph, executor);
        saved != compiled_.saved_state) {
      throw Error(ErrorCode::io,
                  fmt::format("{}: [iterate] from: '{}' was replaced while this job was starting: give "
                              "the job a file that nobody writes to, and start it again",
                              job_.where("iterate", "from"), checkpoint::saved_state_file(job_).native()));
    }
    first_step_ = compiled_.saved_state.steps;
    return guarded(executor, failed, [&] {
      await_ranks();
      const StepsUnderWay from_here_on;
      const int signal = iterate_steps(executor);
      check_before_save(false);
      save_results(metrics::state_path(job_.output), graph::StateKind::field, executor,
                   checkpoint::describe_state(first_step_ + record_.summary.steps));
      return signal;
    });
  }

 private:
  void prepare(runtime::Executor& executor) {
    if (settings_.link != nullptr) {
      record_.now_at("waiting for the other ranks");
      settings_.link->connect(executor);
      if (job_.check_every >= 0) {
        replicas_.emplace(compiled_, executor, *settings_.link);
      }
    }
    if (settings_.profile) {
      executor.start_profile();
    }
    if (compiled_.dataset != nullptr) {
      record_.say(compiled_.dataset->describe());
    }
    const std::string ranks =
        compiled_.partition.placements.mesh.ranks() == 1
            ? ""
            : fmt::format("{} ranks by strategy {}, each: ", compiled_.partition.placements.mesh.ranks(),
                          job_.strategy.name);
    record_.say(fmt::format("{}: {}, {}arena {}, {}, {} a step in all", job_.model.name,
                            metrics::counted(record_.summary.parameters, "parameter"), ranks,
                            metrics::human_bytes(compiled_.programs.memory.peak),
                            metrics::counted(compiled_.programs.threads, "thread"),
                            metrics::human_quantity(compile::flops_per_step(compiled_), "FLOP")));
  }

  /// Runs a task and returns the signal that stopped it, or 0. Finishes the record in any case.
  template <typename Run>
  metrics::Summary guarded(runtime::Executor& executor, metrics::Summary& failed, const Run& run) {
    try {
      const int signal = run();
      write_trace_at_end();
      finish(executor, signal == 0 ? "finished" : "stopped", signal == 0 ? 0 : 128 + signal);
    } catch (const Error& error) {
      record_.log(error.message());  // the person is told at the end, by whoever reports the job's result
      write_trace_at_end();
      finish(executor, "failed", shardrun::exit_code(error.code()));
      failed = record_.summary;
      throw;
    }
    if (settings_.profile && record_.is_first()) {
      settings_.display.result(profile_table(executor.profile()));
    }
    return record_.summary;
  }

  void finish(const runtime::Executor& executor, const char* status, int exit_code) {
    metrics::RankSummary& own = record_.summary.ranks[0];
    own.peak_bytes = executor.arena()->touched_bytes();
    own.wire_bytes = settings_.link == nullptr ? 0 : settings_.link->wire_bytes();
    record_.finish(status, exit_code);
  }

  /// Called before operations between ranks, after work that takes some of them longer than others.
  void await_ranks() const {
    if (settings_.link != nullptr) {
      settings_.link->barrier();
    }
  }

  /// For reports about this rank if the job fails, and for the screen. `activity`: in words for the person; a step that
  /// follows another needs none.
  void now_at(std::string_view phase, std::int64_t step, std::string_view activity = {}) {
    if (settings_.link != nullptr) {
      settings_.link->now_at(phase, step);
    }
    if (!activity.empty()) {
      record_.now_at(activity);
    }
  }

  /// Compares replicas after so many steps of the run's count.
  void check_replicas(std::int64_t step) {
    if (!replicas_ || !replicas_->exist()) {
      return;
    }
    now_at("comparing replicas", step);
    const Clock::time_point begin = Clock::now();
    replicas_->compare(step);
    record_.summary.check_s += metrics::seconds_since(begin);
    ++record_.summary.checks;
  }

  [[nodiscard]] bool check_is_due(std::int64_t step) const {
    return job_.check_every > 0 && step % job_.check_every == 0;
  }

  /// Compares them if they have changed since the last comparison.
  void check_before_save(bool changed) {
    const std::int64_t step = first_step_ + record_.summary.steps;
    if (changed || (replicas_ && replicas_->last_equal() != step)) {
      naming_step(step - 1, [&] { check_replicas(step); });
    }
  }

  [[nodiscard]] Agree agreement() const {
    if (settings_.link == nullptr) {
      return {};
    }
    return [link = settings_.link](std::int32_t value) { return link->agree(value); };
  }

  [[nodiscard]] MadeOfAll made_of_all() const {
    if (settings_.link == nullptr) {
      return {};
    }
    return [link = settings_.link](std::string_view name, const std::string& given, const auto& make) {
      return link->made_of_all(name, given, make);
    };
  }

  /// The signal that asked to stop, on every rank at the same step; 0: none.
  [[nodiscard]] int stopped() const {
    if (settings_.link != nullptr) {
      return settings_.link->agree_on_stop();
    }
    return settings_.stop_signal ? settings_.stop_signal() : 0;
  }

  template <typename Run>
  auto traced(std::int64_t step, runtime::Executor& executor, const Run& run) {
    return naming_step(step, [&] { return tracer_ ? tracer_->step(step - first_step_, executor, run) : run(); });
  }

  /// Called between steps, when nothing waits for it.
  void write_trace_if_due() {
    if (tracer_ && tracer_->is_due()) {
      tracer_->write(job_.output);
    }
  }

  /// For a run that ends before all steps were recorded. An error here is not the run's.
  void write_trace_at_end() {
    try {
      if (tracer_) {
        tracer_->write(job_.output);
      }
    } catch (const Error& error) {
      record_.say(error.message());
    }
  }

  int train_steps(Training& training) {
    const double tokens = static_cast<double>(job_.data.batch * compiled_.dataset->tokens_per_sample());
    double timed_seconds = 0;
    std::int64_t timed_steps = 0;
    runtime::Executor& executor = training.executor();
    int signal = 0;
    for (std::int64_t step = 0; step < job_.train.steps && signal == 0; ++step) {
      now_at("training", step + 1, step == 0 ? metrics::first_step_activity : "");
      const partition::SentBytes sent_before = executor.sent();
      const double exposed_before = executor.exposed_seconds();
      const double hidden_before = executor.hidden_seconds();
      const Clock::time_point begin = Clock::now();
      const StepResult result = traced(step, executor, [&] { return training.step(step); });
      const double seconds = metrics::seconds_since(begin);
      const double exposed = executor.exposed_seconds() - exposed_before;
      const double hidden = executor.hidden_seconds() - hidden_before;
      const partition::SentBytes sent = difference(executor.sent(), sent_before);
      write_trace_if_due();
      const bool last = step + 1 == job_.train.steps;
      const bool due = job_.train.eval_every > 0 && (step + 1) % job_.train.eval_every == 0;
      if (last || due || check_is_due(step + 1)) {
        naming_step(step, [&] { check_replicas(step + 1); });
      }
      const std::optional<double> validation =
          last || due ? naming_step(step, [&] { return validate(training, step); }) : std::nullopt;
      record_.write({.step = step + 1,
                     .loss = result.loss,
                     .val_loss = validation,
                     .grad_norm = result.gradient_norm,
                     .lr = result.learning_rate,
                     .tokens_per_s = tokens / seconds,
                     .step_s = seconds,
                     .comm_s = exposed + hidden,
                     .comm_exposed_s = exposed,
                     .comm_hidden_s = hidden});
      // From here on the step counts. An earlier failure, in the validation too, leaves the step before as the last.
      record_.count_step(seconds);
      record_.summary.ranks[0].sent_bytes = sent;
      if (step >= warm_up_steps || job_.train.steps <= warm_up_steps) {
        timed_seconds += seconds;
        ++timed_steps;
      }
      record_.summary.loss = result.loss;
      record_.summary.val_loss = validation ? validation : record_.summary.val_loss;
      record_.summary.tokens_per_s =
          timed_seconds > 0 ? tokens * static_cast<double>(timed_steps) / timed_seconds : tokens / seconds;
      record_.update({.step = step + 1, .loss = result.loss, .val_loss = validation, .rate = tokens / seconds});
      signal = stop_heard_ != 0 ? stop_heard_ : naming_step(step, [&] { return stopped(); });
    }
    record_.finish_progress();
    return signal;
  }

  /// Nothing if there is nothing to validate on, or if all ranks were asked to stop before the end.
  [[nodiscard]] std::optional<double> validate(Training& training, std::int64_t step) {
    now_at("validating", step + 1);
    const std::optional<double> validation = training.evaluate([&](std::int64_t batch, std::int64_t batches) {
      record_.now_at("validating batch", batch, batches);
      stop_heard_ = stopped();
      return stop_heard_ == 0;
    });
    if (validation && training.anywhere(!std::isfinite(*validation))) {
      throw Error(
          ErrorCode::numerics,
          fmt::format("step {}: the validation loss is not finite: the step before it made the parameters useless, "
                      "and no weights are written. A smaller [train] learning_rate or clip > 0 may help",
                      step + 1));
    }
    if (validation && training.anywhere(training.is_impossible(*validation))) {
      throw Error(ErrorCode::numerics,
                  fmt::format("step {}: the validation loss is {:.6g}, and the model's is never negative: ranks have "
                              "computed with different data or parameters, or their memory was overwritten. No weights "
                              "are written",
                              step + 1, *validation));
    }
    return validation;
  }

  int iterate_steps(runtime::Executor& executor) {
    const std::size_t program = executor.find(graph::Role::once);
    int signal = 0;
    const std::int64_t save_every = job_.iterate.save_every;
    for (std::int64_t step = first_step_; step < first_step_ + job_.iterate.steps && signal == 0; ++step) {
      now_at("iterating", step + 1, step == first_step_ ? metrics::first_step_activity : "");
      const partition::SentBytes sent_before = executor.sent();
      const Clock::time_point begin = Clock::now();
      traced(step, executor, [&] { executor.run(program, {.seed = job_.seed, .step = step}); });
      const double seconds = metrics::seconds_since(begin);
      const partition::SentBytes sent = difference(executor.sent(), sent_before);
      write_trace_if_due();
      const bool saves = save_every > 0 && (step + 1) % save_every == 0;
      if (saves || check_is_due(step + 1)) {
        naming_step(step, [&] { check_replicas(step + 1); });
      }
      record_.write(std::vector<metrics::JsonField>{{"step", step + 1}, {"step_s", seconds}});
      record_.count_step(seconds);
      record_.summary.ranks[0].sent_bytes = sent;
      if (saves) {
        save(metrics::state_path(job_.output, step + 1), graph::StateKind::field, executor,
             checkpoint::describe_state(step + 1));
      }
      record_.update({.step = step + 1, .rate = 1 / std::max(seconds, 1e-12)});
      signal = naming_step(step, [&] { return stopped(); });
    }
    record_.finish_progress();
    return signal;
  }

  /// At the end of the run.
  void save_results(const std::filesystem::path& path, graph::StateKind kind, const runtime::Executor& executor,
                    const checkpoint::Metadata& metadata) {
    record_.results_are(Results::being_written);
    save(path, kind, executor, metadata);
    record_.results_are(Results::saved);
  }

  void save(const std::filesystem::path& path, graph::StateKind kind, const runtime::Executor& executor,
            const checkpoint::Metadata& metadata) {
    if (settings_.link != nullptr) {
      now_at("writing what the ranks hold", 0, "writing " + path.filename().string());
    }
    const auto require_folder = [&] { settings_.folder.require_owned(); };
    require_folder();
    checkpoint::save_states(path, compiled_.graph, kind, compiled_.partition, executor,
                            settings_.link == nullptr ? 0 : settings_.link->rank(), metadata,
                            {.await_ranks = [&] { await_ranks(); }, .before_commit = require_folder});
  }

  /// Every rank samples the same text; the first shows it. Returns the signal that ended it early, or 0.
  int print_sample(Training& training) {
    const data::Tokenizer* tokenizer = compiled_.dataset->tokenizer();
    if (job_.train.sample == 0 || tokenizer == nullptr) {
      return 0;
    }
    now_at("sampling", 0);
    const auto goes_on = [this] {
      stop_heard_ = stopped();
      return stop_heard_ == 0;
    };
    std::int64_t sampled = 0;
    std::string text;
    sample(training.executor(), first_tokens(*tokenizer),
           {.tokens = job_.train.sample, .seed = job_.seed, .vocabulary = tokenizer->vocabulary(), .goes_on = goes_on},
           [&](std::int32_t token) {
             tokenizer->decode(token, text);
             record_.now_at("sampling token", ++sampled, job_.train.sample);
           });
    if (record_.is_first() && stop_heard_ == 0) {
      settings_.folder.require_owned();
      files::write_file_atomically(metrics::sample_path(job_.output), text);
      settings_.display.result(fmt::format("sample:\n{}\n", text));
    }
    return stop_heard_;
  }

  /// The start of a sample: the end of a line if the text has lines, else its first character.
  static std::vector<std::int32_t> first_tokens(const data::Tokenizer& tokenizer) {
    try {
      return {tokenizer.encode("\n").front()};
    } catch (const Error&) {
      return {0};
    }
  }

  const job::Job& job_;
  compile::Compiled& compiled_;
  const StepSettings& settings_;
  metrics::Record record_;
  std::optional<Tracer> tracer_;
  std::optional<Replicas> replicas_;  ///< with several ranks
  std::int64_t first_step_ = 0;       ///< done before this run
  int stop_heard_ = 0;                ///< within an evaluation or a sample, by all ranks at the same point
};

}  // namespace

metrics::Summary planned_summary(const compile::Compiled& compiled) {
  metrics::Summary summary;
  summary.parameters = graph::parameter_count(compiled.graph);
  summary.data_bytes = compiled.dataset == nullptr ? 0 : compiled.dataset->host_bytes();
  const partition::MemoryUse& memory = compiled.programs.memory;
  summary.ranks = {{.planned_bytes = memory.peak,
                    .categories = {memory.parameters, memory.gradients, memory.optimizer, memory.activations,
                                   memory.communication, memory.scratch}}};
  return summary;
}

metrics::Summary run_steps(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                           metrics::Summary& failed) {
  Steps steps(job, compiled, settings);
  return job.task == job::Task::train ? steps.train(failed) : steps.iterate(failed);
}

}  // namespace shardrun::train
