#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/weights.h"
#include "core/files/atomic_file.h"
#include "core/infer/sampling.h"
#include "core/metrics/run_files.h"
#include "core/train/engine_training.h"
#include "core/train/rank_task.h"

#include "core/train/training.h"

namespace shardrun::train {
namespace {

/// The first steps, which the summary's rate leaves out because of caches, page faults and the libraries' first calls.
constexpr std::int64_t warm_up_steps = 2;

class TrainTask : private RankTask {
 public:
  using RankTask::RankTask;

  metrics::Summary run(metrics::Summary& failed) {
    const std::unique_ptr<Trainer> trainer = make_trainer();
    Trainer& training = *trainer;
    prepare(training.executor());
    return guarded(training.executor(), failed, [&] {
      record_.now_at("setting first values");
      training.initialize();
      resume(training.executor());
      training.begin_at(first_);
      begin_steps();
      const StepsUnderWay from_here_on;
      const int signal = train_steps(training);
      if (ends_with_checkpoint(signal)) {
        save_at_end(signal);
        return signal;
      }
      check_before_save(training.finish());
      save_results({result_file()}, training.executor());
      save_at_end(signal);
      if (!not_finite_.empty()) {
        throw Error(ErrorCode::numerics, not_finite_);
      }
      return signal == 0 ? print_sample(training) : signal;
    });
  }

 private:
  [[nodiscard]] std::unique_ptr<Trainer> make_trainer() const {
    if (compiled_.engine != nullptr) {
      return std::make_unique<EngineTraining>(job_, compiled_, settings_.link);
    }
    return std::make_unique<Training>(job_, compiled_, agreement(), made_of_all());
  }

  [[nodiscard]] checkpoint::StateFile result_file() const {
    const std::filesystem::path path = metrics::weights_path(job_.output);
    if (compiled_.engine != nullptr) {
      return compile::engine_file(path, *compiled_.engine);
    }
    return checkpoint::state_file(
        path, compiled_.graph, graph::StateKind::parameter,
        checkpoint::describe_model(compiled_.model, compiled_.settings, compiled_.dataset->tokenizer()));
  }

  [[nodiscard]] Agree agreement() const {
    return [&link = settings_.link](std::int32_t value, std::int32_t most) { return link.agree(value, most); };
  }

  [[nodiscard]] MadeOfAll made_of_all() const {
    return [&link = settings_.link](std::string_view name, const std::string& given, const auto& make) {
      return link.made_of_all(name, given, make);
    };
  }

  [[nodiscard]] bool evaluates(std::int64_t step) const {
    return step + 1 == job_.train.steps || (job_.train.eval_every > 0 && (step + 1) % job_.train.eval_every == 0);
  }

  int train_steps(Trainer& training) {
    const auto end = [&](const UnderWay& under_way) {
      const StepResult result = training.end_step(under_way.step);
      record_step(under_way.step, result, std::nullopt, under_way.meter.end());
    };
    const bool has_no_steps = first_.step == last_step_;
    int signal = first_.evaluated && !has_no_steps ? 0 : evaluate_first(training);
    for (std::int64_t step = first_.step; step < last_step_ && signal == 0 && not_finite_.empty(); ++step) {
      now_at("training", step + 1, step == first_.step ? metrics::first_step_activity : "");
      if (training.is_late() && !evaluates(step) && !ends_at_once(step)) {
        begin_step(step, training.executor(), [&] { training.begin_step(step); });
        signal = end_steps(1, end);
      } else {
        signal = end_steps(0, end);
        signal = signal != 0 ? signal : whole_step(training, step);
      }
    }
    record_.finish_progress();
    return signal;
  }

  /// Runs a step to its end, and then what is due after it.
  int whole_step(Trainer& training, std::int64_t step) {
    if (job_.checks.replay && checks_after(step, evaluates(step))) {
      training.replay_next();
    }
    const StepMeter meter(training.executor());
    const StepResult result = traced(step, training.executor(), [&] { return training.step(step); });
    const StepMeasure measured = meter.end();
    write_trace_if_due();
    check_replicas_after(step, evaluates(step));
    if (compares_replicas() && checks_after(step, evaluates(step))) {
      naming_step(step, [&] { training.check_copies(step + 1); });
    }
    const std::optional<double> validation =
        evaluates(step) ? naming_step(step, [&] { return validate(training, step); }) : std::nullopt;
    record_step(step, result, validation, measured);
    return not_finite_.empty() ? between_steps(step, stop_heard_) : 0;
  }

  /// Evaluates the state with which the run begins, if the run has no steps, or if the run that it continues was asked
  /// to stop before its last evaluation had ended.
  int evaluate_first(Trainer& training) {
    record_.now_at(metrics::first_step_activity);
    if (const std::optional<double> validation = validate(training, first_.step - 1)) {
      record_.add_validation(first_.step, *validation);
      record_.summary.val_loss = validation;
    }
    return stop_heard_;
  }

  void record_step(std::int64_t step, const StepResult& result, std::optional<double> validation,
                   const StepMeasure& measured) {
    const double tokens = static_cast<double>(job_.data.batch * compiled_.dataset->tokens_per_sample());
    const double rate = tokens / measured.duration;
    const metrics::RankRates rates = rates_of(step, measured);
    record_.write({.step = step + 1,
                   .loss = result.loss,
                   .val_loss = validation,
                   .grad_norm = result.gradient_norm,
                   .lr = result.learning_rate,
                   .tokens_per_s = rate,
                   .step_s = measured.duration,
                   .comm_s = measured.exposed + measured.hidden,
                   .comm_exposed_s = measured.exposed,
                   .comm_hidden_s = measured.hidden,
                   .bandwidth = rates.bandwidth(),
                   .flops_per_s = rates.flops > 0 ? std::optional(rates.flops_per_s()) : std::nullopt,
                   .utilisation = utilisation(rates)});
    // From here on the step counts as done. After an earlier failure, also in validation,
    // the step before is the last one.
    record_.count_step(measured.duration);
    record_.summary.ranks[0].sent_bytes = measured.sent;
    if (step - first_.step >= warm_up_steps || job_.train.steps - first_.step <= warm_up_steps) {
      timed_seconds_ += measured.duration;
      ++timed_steps_;
    }
    record_.summary.loss = result.loss;
    record_.summary.val_loss = validation ? validation : record_.summary.val_loss;
    record_.summary.tokens_per_s =
        timed_seconds_ > 0 ? tokens * static_cast<double>(timed_steps_) / timed_seconds_ : rate;
    record_.update({.step = step + 1, .loss = result.loss, .val_loss = validation, .rate = rate});
  }

  /// The validation loss. Nothing if there is no validation data, or if all ranks were asked to stop before the end.
  [[nodiscard]] std::optional<double> validate(Trainer& training, std::int64_t step) {
    now_at("validating", step + 1);
    const std::optional<double> validation = training.evaluate([&](std::int64_t batch, std::int64_t batches) {
      record_.now_at("validating batch", batch, batches);
      stop_heard_ = stopped();
      return stop_heard_ == 0;
    });
    training.executor().verify_states();
    if (validation && training.anywhere(!std::isfinite(*validation))) {
      judge_not_finite(training, step, *validation);
      return validation;
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

  /// Decides what follows a validation loss that is not finite. If a parameter is not finite, the run ends here;
  /// otherwise it ends after a save, or not at all, as [train] on_nan says.
  void judge_not_finite(Trainer& training, std::int64_t step, double validation) {
    const NonFiniteEvaluation why = training.why_not_finite(step + 1);
    const std::string found = fmt::format("step {}: the validation loss is {}; the first tensor that is not finite: {}",
                                          step + 1, non_finite_text(validation), why.first);
    if (why.is_parameter) {
      throw Error(ErrorCode::numerics,
                  found + ". No weights are written. A smaller [train] learning_rate or clip > 0 may help");
    }
    if (job_.train.on_nan == job::OnNan::warn) {
      record_.say(found + ". All parameters are finite: the run goes on ([train] on_nan = warn)");
      return;
    }
    not_finite_ = found +
                  ". All parameters are finite and were saved. Look at the data for validation, or let the run go on "
                  "([train] on_nan = warn)";
  }

  /// Every rank samples the same text; the first rank shows it. Returns the signal that ended it early, or 0.
  int print_sample(Trainer& training) {
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
    data::Decoder decoder(*tokenizer);
    infer::sample(training.executor(), infer::first_tokens(*tokenizer), job_.train.sample,
                  {.seed = job_.seed, .vocabulary = tokenizer->vocabulary()}, goes_on, [&](std::int32_t token) {
                    decoder.decode(token, text);
                    record_.now_at("sampling token", ++sampled, job_.train.sample);
                  });
    if (record_.is_first() && stop_heard_ == 0) {
      settings_.folder.require_owned();
      files::write_file_atomically(metrics::sample_path(job_.output), text);
      settings_.display.result(fmt::format("sample:\n{}\n", text));
    }
    return stop_heard_;
  }

  double timed_seconds_ = 0;      ///< of the steps after the warm-up
  std::int64_t timed_steps_ = 0;  ///< number of these steps
  std::string not_finite_;        ///< why the run must end after the next save; "": it continues
  int stop_heard_ = 0;            ///< a signal that ended an evaluation or a sample, the same on all ranks
};

}  // namespace

metrics::Summary run_training(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                              metrics::Summary& failed) {
  return TrainTask(job, compiled, settings).run(failed);
}

}  // namespace shardrun::train
