#include "core/task/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <vector>

#include "core/base/error.h"
#include "core/files/atomic_file.h"
#include "core/memory/machine.h"
#include "core/metrics/human.h"
#include "core/metrics/jsonl.h"
#include "core/metrics/log.h"
#include "core/metrics/rundir.h"
#include "core/task/compile.h"
#include "core/task/sampling.h"
#include "core/task/training.h"
#include "core/task/weights.h"

namespace shardrun::task {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Private memory of this process that is not the arena's: what malloc, libraries and stacks hold.
std::uint64_t private_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "RssAnon:") {
      std::uint64_t kilobytes = 0;
      status >> kilobytes;
      return kilobytes * 1024;
    }
  }
  return 0;
}

constexpr const char* sample_name = "sample.txt";

/// The median step time is that of the last so many steps.
constexpr std::size_t median_window = 4096;

/// What every run keeps, whatever its task.
class Record {
 public:
  Record(const job::Job& job, const Compiled& compiled, const RunSettings& settings, std::int64_t steps,
         std::string unit)
      : job_(job), compiled_(compiled), directory_(job.output), settings_(settings), begin_(Clock::now()) {
    directory_.remove_older_run();
    std::filesystem::remove(job.output / sample_name);
    files::write_file_atomically(job.output / "job.ini", job::canonical_text(job));
    log_.emplace(metrics::log_path(job.output, 0));
    lines_.emplace(metrics::metrics_path(job.output));
    progress_.emplace(settings.progress, steps, job.task == job::Task::train ? job.train.log_every : 0,
                      std::move(unit));
    step_seconds_.reserve(median_window);
    summary.parameters = graph::parameter_count(compiled.graph);
    const partition::MemoryUse& memory = compiled.programs.memory;
    summary.ranks = {{.planned_bytes = memory.peak,
                      .categories = {memory.parameters, memory.gradients, memory.optimizer, memory.activations,
                                     memory.communication, memory.scratch}}};
  }

  /// To the log and, above the live line, to the person.
  void say(const std::string& line) {
    log_->write(line);
    progress_->print(line);
  }

  void finish(const runtime::Executor& executor, const char* status, int exit_code) {
    summary.status = status;
    summary.exit_code = exit_code;
    summary.seconds = seconds_since(begin_);
    summary.step_ms_median = 1000 * median(step_seconds_);
    summary.ranks[0].peak_bytes = executor.arena().touched_bytes();
    summary.ranks[0].private_bytes = private_bytes();
    metrics::write_summary(metrics::summary_path(job_.output), summary);
    log_->write(fmt::format("{} after {} steps", status, summary.steps));
  }

  void fail(const runtime::Executor& executor, const Error& error) {
    log_->write(error.message());
    finish(executor, "failed", shardrun::exit_code(error.code()));
  }

  /// 0, or the signal that asked to stop.
  [[nodiscard]] int stopped() const { return settings_.stop_signal ? settings_.stop_signal() : 0; }

  void count_step(double seconds) {
    if (step_seconds_.size() < median_window) {
      step_seconds_.push_back(seconds);
    } else {
      step_seconds_[static_cast<std::size_t>(summary.steps) % median_window] = seconds;
    }
    ++summary.steps;
  }

  metrics::JsonlWriter& lines() { return *lines_; }
  metrics::Progress& progress() { return *progress_; }
  metrics::Summary summary;

 private:
  const job::Job& job_;
  const Compiled& compiled_;
  metrics::RunDirectory directory_;
  const RunSettings& settings_;
  Clock::time_point begin_;
  std::optional<metrics::Log> log_;
  std::optional<metrics::JsonlWriter> lines_;
  std::optional<metrics::Progress> progress_;
  std::vector<double> step_seconds_;
};

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

/// Steps that a median rate should not count: caches, page faults and the libraries' own first calls.
constexpr std::int64_t warm_up_steps = 2;

void train_steps(const job::Job& job, const Compiled& compiled, Training& training, Record& record) {
  const double tokens = static_cast<double>(job.data.batch * compiled.dataset->tokens_per_sample());
  double timed_seconds = 0;
  std::int64_t timed_steps = 0;
  for (std::int64_t step = 0; step < job.train.steps && record.stopped() == 0; ++step) {
    const Clock::time_point begin = Clock::now();
    const StepResult result = training.step(step);
    const double seconds = seconds_since(begin);
    record.count_step(seconds);
    if (step >= warm_up_steps || job.train.steps <= warm_up_steps) {
      timed_seconds += seconds;
      ++timed_steps;
    }
    record.summary.loss = result.loss;
    record.summary.tokens_per_s =
        timed_seconds > 0 ? tokens * static_cast<double>(timed_steps) / timed_seconds : tokens / seconds;
    const bool last = step + 1 == job.train.steps;
    const bool due = job.train.eval_every > 0 && (step + 1) % job.train.eval_every == 0;
    const std::optional<double> validation = last || due ? training.evaluate() : std::nullopt;
    if (validation && !std::isfinite(*validation)) {
      throw Error(
          ErrorCode::numerics,
          fmt::format("step {}: the validation loss is not finite: the step before it made the parameters useless, "
                      "and no weights are written. A smaller [train] learning_rate or clip > 0 may help",
                      step + 1));
    }
    record.summary.val_loss = validation ? validation : record.summary.val_loss;
    record.lines().write({.step = step + 1,
                          .loss = result.loss,
                          .val_loss = validation,
                          .grad_norm = result.gradient_norm,
                          .lr = result.learning_rate,
                          .tokens_per_s = tokens / seconds,
                          .step_s = seconds});
    record.progress().update({.step = step + 1, .loss = result.loss, .val_loss = validation, .rate = tokens / seconds});
  }
  record.progress().finish();
}

/// What sampling starts from: the end of a line where the text has lines, else its first character.
std::vector<std::int32_t> first_tokens(const data::Tokenizer& tokenizer) {
  try {
    return {tokenizer.encode("\n").front()};
  } catch (const Error&) {
    return {0};
  }
}

void print_sample(const job::Job& job, const Compiled& compiled, Training& training, const RunSettings& settings) {
  const data::Tokenizer* tokenizer = compiled.dataset->tokenizer();
  if (job.train.sample == 0 || tokenizer == nullptr) {
    return;
  }
  std::string text;
  sample(training.executor(), first_tokens(*tokenizer),
         {.tokens = job.train.sample, .seed = job.seed, .vocabulary = tokenizer->vocabulary()},
         [&](std::int32_t token) { tokenizer->decode(token, text); });
  settings.print(fmt::format("sample:\n{}\n", text));
  files::write_file_atomically(job.output / sample_name, text);
}

/// The arena is given page by page: without this the kernel would kill a job that is too large in the middle of a step.
void require_memory(const job::Job& job, const Compiled& compiled) {
  const std::uint64_t needed = compiled.programs.memory.peak;
  const std::uint64_t available = memory::available_bytes();
  if (available != 0 && needed > available) {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: the job needs {} ({} bytes) and this machine has {} available: make the model, [data] "
                    "batch or context smaller, use more microbatches, or free memory; 'shardrun plan' shows what "
                    "takes it",
                    job.file, metrics::human_bytes(needed), needed, metrics::human_bytes(available)));
  }
}

/// A run writes job.ini into its folder: never over the one that the user wrote.
void require_own_folder(const job::Job& job) {
  std::error_code none;
  if (std::filesystem::equivalent(job.file, job.output / "job.ini", none)) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] output = {} is the job file's own folder, where the run would "
                                            "overwrite it: choose another",
                                            job.where("job", "output"), job.output.string()));
  }
}

metrics::Summary train(const job::Job& job, const RunSettings& settings) {
  require_own_folder(job);
  const Compiled compiled = compile(job);
  require_memory(job, compiled);
  if (compiled.dataset == nullptr) {
    throw Error(ErrorCode::job,
                fmt::format("{}: training needs data: set [data] text, tokens or arrays", job.where("data", "")));
  }
  Record record(job, compiled, settings, job.train.steps, "tok");
  Training training(job, compiled);
  if (settings.profile) {
    training.executor().start_profile();
  }
  record.say(compiled.dataset->describe());
  record.say(fmt::format("{}: {} parameters, arena {}, {} threads, {:.3f} GFLOP a step", job.model.name,
                         record.summary.parameters, metrics::human_bytes(compiled.programs.memory.peak),
                         compiled.programs.threads, static_cast<double>(flops_per_step(compiled)) / 1e9));
  try {
    training.initialize();
    train_steps(job, compiled, training, record);
    save_states(job.output / "weights.safetensors", compiled.graph, graph::StateKind::parameter, training.executor(),
                describe_model(job.model, compiled.settings, compiled.dataset->tokenizer()));
    const int signal = record.stopped();
    if (signal == 0) {
      print_sample(job, compiled, training, settings);
    }
    record.finish(training.executor(), signal == 0 ? "finished" : "stopped", signal == 0 ? 0 : 128 + signal);
  } catch (const Error& error) {
    record.fail(training.executor(), error);
    throw;
  }
  if (settings.profile) {
    settings.print(profile_table(training.executor().profile()));
  }
  return record.summary;
}

metrics::Summary iterate(const job::Job& job, const RunSettings& settings) {
  require_own_folder(job);
  const Compiled compiled = compile(job);
  require_memory(job, compiled);
  Record record(job, compiled, settings, job.iterate.steps, "it");
  runtime::Executor executor(compiled.programs, *compiled.device);
  if (settings.profile) {
    executor.start_profile();
  }
  for (std::size_t s = 0; s < compiled.graph.states.size(); ++s) {
    runtime::initialize(executor.state(static_cast<graph::StateId>(s)), sizeof(float), compiled.graph.states[s],
                        job.seed, executor.threads());
  }
  const std::size_t program = executor.find("iterate", 0);
  try {
    for (std::int64_t step = 0; step < job.iterate.steps && record.stopped() == 0; ++step) {
      const Clock::time_point begin = Clock::now();
      executor.run(program, {.seed = job.seed, .step = step});
      const double seconds = seconds_since(begin);
      record.count_step(seconds);
      record.lines().write(std::vector<metrics::JsonField>{{"step", step + 1}, {"step_s", seconds}});
      record.progress().update({.step = step + 1, .rate = 1 / std::max(seconds, 1e-12)});
    }
    record.progress().finish();
    save_states(job.output / "state.safetensors", compiled.graph, graph::StateKind::field, executor, {});
    const int signal = record.stopped();
    record.finish(executor, signal == 0 ? "finished" : "stopped", signal == 0 ? 0 : 128 + signal);
  } catch (const Error& error) {
    record.fail(executor, error);
    throw;
  }
  if (settings.profile) {
    settings.print(profile_table(executor.profile()));
  }
  return record.summary;
}

}  // namespace

metrics::Summary run(const job::Job& job, const RunSettings& settings) {
  return job.task == job::Task::train ? train(job, settings) : iterate(job, settings);
}

}  // namespace shardrun::task
