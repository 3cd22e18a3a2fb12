#include "core/train/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/metrics/record.h"
#include "core/train/rank_task.h"

namespace shardrun::train {
namespace {

/// `after` − `before`.
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

}  // namespace

metrics::Summary planned_summary(const compile::Compiled& compiled) {
  metrics::Summary summary;
  summary.parameters = graph::parameter_count(compiled.graph);
  summary.data_bytes = compiled.dataset == nullptr ? 0 : compiled.dataset->host_bytes();
  const partition::MemoryUse& memory = compiled.programs.memory;
  const std::string unit = compiled.device->has_units() ? compiled.device->facts().unit : "";
  summary.ranks = {{.host = host_name(),
                    .device = fmt::format("{}{}{}", compiled.device->name(), unit.empty() ? "" : ":", unit),
                    .planned_bytes = memory.peak,
                    .categories = {memory.parameters, memory.gradients, memory.optimizer, memory.activations,
                                   memory.communication, memory.scratch}}};
  return summary;
}

metrics::Summary run_steps(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                           metrics::Summary& failed) {
  switch (job.task) {
    case job::Task::train: return run_training(job, compiled, settings, failed);
    case job::Task::iterate: return run_iterating(job, compiled, settings, failed);
    case job::Task::infer:
      if (job::generates(job)) {
        return run_generating(job, compiled, settings, failed);
      }
      return job::applies_model(job) ? run_predicting(job, compiled, settings, failed)
                                     : run_inferring(job, compiled, settings, failed);
  }
  throw Error(ErrorCode::internal, "the job's task is unknown");
}

int exit_code_of_stop(const job::Job& job, int signal) noexcept {
  constexpr int temporary_failure = 75;
  return job.checkpoints.used ? temporary_failure : 128 + signal;
}

std::int64_t profile_interval(const job::Job& job) {
  constexpr std::int64_t usual_lines = 10;
  return job.task == job::Task::train && job.train.log_every > 0
             ? job.train.log_every
             : std::max<std::int64_t>(1, job::steps_of(job) / usual_lines);
}

std::string rate_unit(const job::Job& job) {
  return job::generates(job)                                ? "tok"
         : job::applies_model(job)                          ? "samples"
         : job.task == job::Task::infer                     ? "records"
         : job.task == job::Task::iterate                   ? "it"
         : job.data.text.empty() && job.data.tokens.empty() ? "samples"
                                                            : "tok";
}

StepMeter::StepMeter(const runtime::Executor& executor) : executor_(executor), before_(executor.sent()) {
  begin_again();
}

void StepMeter::begin_again() {
  exposed_ = executor_.exposed_seconds();
  hidden_ = executor_.hidden_seconds();
  input_ = executor_.input_seconds();
  late_ = executor_.late_seconds();
  starved_ = executor_.starved();
  begin_ = std::chrono::steady_clock::now();
}

void StepMeter::all_is_given() { sent_ = difference(executor_.sent(), before_); }

double StepMeter::seconds() const { return metrics::seconds_since(begin_); }

StepMeasure StepMeter::end() const {
  const runtime::Starved starved = executor_.starved();
  return {.duration = seconds(),
          .exposed = executor_.exposed_seconds() - exposed_,
          .hidden = executor_.hidden_seconds() - hidden_,
          .input = executor_.input_seconds() - input_,
          .late = executor_.late_seconds() - late_,
          .starved = {starved.all - starved_.all, starved.waiting - starved_.waiting},
          .sent = sent_ ? *sent_ : difference(executor_.sent(), before_)};
}

partition::SentBytes sent_in_call(const runtime::Executor& executor, std::size_t program, std::int64_t calls) {
  partition::SentBytes sent = difference(executor.sent(program), {});
  for (auto& [axis, collectives] : sent) {
    for (auto& [collective, bytes] : collectives) {
      bytes /= static_cast<std::uint64_t>(calls);
    }
  }
  return sent;
}

double learning_rate(const job::TrainSettings& train, std::int64_t step) {
  if (step < train.warmup) {
    return train.learning_rate * static_cast<double>(step + 1) / static_cast<double>(train.warmup + 1);
  }
  const std::int64_t span = std::max<std::int64_t>(1, train.steps - train.warmup);
  const double progress = std::min(1.0, static_cast<double>(step - train.warmup) / static_cast<double>(span));
  const double range = train.learning_rate - train.min_learning_rate;
  switch (train.schedule) {
    case job::Schedule::constant: return train.learning_rate;
    case job::Schedule::linear: return train.learning_rate - range * progress;
    case job::Schedule::cosine:
      return train.min_learning_rate + 0.5 * range * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return train.learning_rate;
}

void set_links(metrics::RankRates& rates, const std::vector<sdk::Arrivals>& before,
               const std::vector<sdk::Arrivals>& now) {
  rates.slowest = rates.others = {};
  for (std::size_t from = 0; from < now.size(); ++from) {
    const sdk::Arrivals earlier = from < before.size() ? before[from] : sdk::Arrivals{};
    if (now[from].bytes <= earlier.bytes || now[from].nanoseconds <= earlier.nanoseconds) {
      continue;
    }
    metrics::RankRates::Link link = {
        .from = static_cast<std::int64_t>(from),
        .bytes = static_cast<double>(now[from].bytes - earlier.bytes),
        .seconds = static_cast<double>(now[from].nanoseconds - earlier.nanoseconds) * 1e-9};
    if (rates.slowest.from < 0 || link.bandwidth() < rates.slowest.bandwidth()) {
      std::swap(link, rates.slowest);
    }
    rates.others.bytes += link.bytes;
    rates.others.seconds += link.seconds;
  }
}

void Stops::look() noexcept {
  constexpr std::chrono::milliseconds least{20};
  const std::optional<std::int64_t> waited = core_wait_.nanoseconds();
  const auto now = std::chrono::steady_clock::now();
  if (waited && waited_) {
    const std::chrono::nanoseconds late = now - looked_ - interval - std::chrono::nanoseconds(*waited - *waited_);
    if (late >= least) {
      nanoseconds_ += late.count();
      ++count_;
    }
  }
  looked_ = now;
  waited_ = waited;
}

}  // namespace shardrun::train
