#include "core/train/rank_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <span>

#include "core/base/human.h"
#include "core/compile/plugins.h"
#include "core/device/apart.h"
#include "core/files/folder.h"

namespace shardrun::train {
namespace {

/// The table of `shardrun run --profile`: calls, time and rate of each op that ran.
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

/// The highest rate of an op, in operations per second. Ops that take less than a hundredth of the time do not count.
double fastest_of(const std::vector<runtime::OpTime>& times) {
  double total = 0;
  for (const runtime::OpTime& time : times) {
    total += time.seconds;
  }
  double fastest = 0;
  for (const runtime::OpTime& time : times) {
    if (time.seconds > 0 && time.seconds >= total / 100) {
      fastest = std::max(fastest, static_cast<double>(time.flops) / time.seconds);
    }
  }
  return fastest;
}

/// What a job's `transport = auto` stands for: " over NAME along data, NAME along model".
std::string transports_text(const job::Job& job, const compile::Compiled& compiled) {
  const runtime::TransportSet& set = compiled.transports;
  const IdVector<mesh::AxisId, mesh::Axis>& axes = compiled.partition.placements.mesh.axes;
  std::string text;
  for (const mesh::AxisId axis : compile::chooses_transports(job) ? axes.ids() : IdRange<mesh::AxisId>({}, {})) {
    if (axes[axis].size > 1) {
      text += fmt::format("{} {} along {}", text.empty() ? " over" : ",",
                          set.transports[set.of_axis[axis]].manifest().name, axes[axis].name);
    }
  }
  return text;
}

}  // namespace

void rethrow_with_step(const Error& error, std::int64_t step) {
  if (const auto* const late = dynamic_cast<const runtime::TransferError*>(&error)) {
    step = late->step().value_or(step);
  }
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

RankTask::RankTask(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings)
    : job_(job),
      compiled_(compiled),
      settings_(settings),
      record_(settings.display, settings.folder, settings.link.rank(), planned_summary(compiled)) {
  const std::int64_t done = compiled.saved_state.steps;
  first_ = compiled.resumed != nullptr ? first_position(compiled)
                                       : checkpoint::Position{.step = done, .samples = done * compiled.iterated_rows};
  record_.summary.loss = first_.loss;
  last_step_ = compiled.saved_state.steps + job::steps_of(job);
  const bool trains = job.task == job::Task::train;
  record_.keep_also({.csv = job.metrics.csv,
                     .events = job.metrics.tensorboard,
                     .numbers = !job.metrics.prometheus.empty(),
                     .fields = trains ? std::span<const std::string_view>(metrics::training_fields)
                                      : std::span<const std::string_view>(metrics::iterating_fields),
                     .done = first_.step});
  if (compiled.engine == nullptr) {  // because an engine's own computing is not known
    for (const std::size_t program : compile::programs_of_step(compiled, compiled.programs)) {
      for (const partition::Instruction& at : compiled.programs.programs[program].instructions) {
        flops_ += static_cast<double>(at.flops);
      }
    }
  }
  if (const partition::Pipeline& pipeline = compiled.partition.pipeline; pipeline.exists()) {
    stage_ = mesh::coordinates_of(compiled.partition.placements.mesh, settings.link.rank())[pipeline.axis];
  }
  if (job.trace == job::Trace::steps) {
    tracer_.emplace(job, compiled);
  }
}

void RankTask::prepare(runtime::Executor& executor) {
  executor_ = &executor;
  if (settings_.link.world_size() > 1) {
    record_.now_at("waiting for the other ranks");
  }
  settings_.link.connect(executor);
  tell_memory("planned_bytes", record_.summary.ranks[0].planned_bytes);
  if (compares_replicas() && compiled_.engine == nullptr) {
    replicas_.emplace(compiled_, executor, settings_.link);
  }
  if (job_.checkpoints.used) {
    checkpointing_.emplace(job_, compiled_, settings_, executor, record_);
    record_.summary.first_step = first_.step;
  }
  if (settings_.profile) {
    executor.start_profile();
  }
  if (compiled_.dataset != nullptr) {
    record_.say(compiled_.dataset->describe());
  }
  if (executor.device().has_units()) {
    std::string transports;
    for (const plugins::Transport& each : compiled_.transports.transports) {
      transports += (transports.empty() ? "; transport " : " and ") + each.manifest().name;
    }
    record_.say(fmt::format("device {}: products by {}{}", record_.summary.ranks[0].device,
                            executor.device().facts().bf16_products, transports));
  }
  const std::string ranks = compiled_.partition.placements.mesh.ranks() == 1
                                ? ""
                                : fmt::format("{} ranks{}{}, each: ", compiled_.partition.placements.mesh.ranks(),
                                              compiled_.engine != nullptr ? "" : " by strategy " + job_.strategy.name,
                                              transports_text(job_, compiled_));
  if (compiled_.engine != nullptr) {
    return record_.say(fmt::format("engine {}: {}, {}arena {} beside what the engine allocates", job_.engine.name,
                                   counted(record_.summary.parameters, "parameter"), ranks,
                                   human_bytes(compiled_.programs.memory.peak)));
  }
  record_.say(fmt::format("{}: {}, {}arena {}, {}, {} a step in all", job_.model.name,
                          counted(record_.summary.parameters, "parameter"), ranks,
                          human_bytes(compiled_.programs.memory.peak), counted(compiled_.programs.threads, "thread"),
                          human_quantity(compile::flops_per_step(compiled_), "FLOP")));
}

metrics::Summary RankTask::guarded(runtime::Executor& executor, metrics::Summary& failed,
                                   const std::function<int()>& run) {
  try {
    const int signal = run();
    report_rates();
    finish(executor, signal == 0 ? "finished" : "stopped", signal == 0 ? 0 : exit_code_of_stop(job_, signal));
  } catch (const Error& error) {
    executor.abort_transfers("this rank has failed: " + error.message());
    record_.log(error.message());  // reported to the person at the end, by whoever reports the job's result
    // Errors in an engine's code or in records appear only once the job runs. They fail the job:
    // they are not wrong usage.
    const bool is_late =
        (compiled_.engine != nullptr || job_.task == job::Task::infer) && shardrun::exit_code(error.code()) == 2;
    const Error failure(is_late ? ErrorCode::internal : error.code(), error.message(), error.awaited());
    finish(executor, "failed", shardrun::exit_code(failure.code()));
    failed = record_.summary;
    if (!is_late) {
      throw;
    }
    throw failure;
  }
  show_profile(executor);
  return record_.summary;
}

void RankTask::finish(const runtime::Executor& executor, const char* status, int exit_code) {
  write_trace_at_end();
  metrics::RankSummary& own = record_.summary.ranks[0];
  // After a failure, the queues of a DeviceApart may wait for other ranks, and asking the device would wait for them.
  if (status != std::string_view("failed") || device::apart(executor.device()) == nullptr) {
    own.peak_bytes = executor.touched_bytes();
  }
  own.wire_bytes = settings_.link.wire_bytes();
  record_.finish(status, exit_code);
}

void RankTask::show_profile(const runtime::Executor& executor) const {
  if (settings_.profile && record_.is_first()) {
    settings_.display.result(profile_table(executor.profile()));
  }
}

void RankTask::begin_steps() {
  executor_->watch();
  settings_.link.barrier();
  if (settings_.link.world_size() > 1) {
    stops_.emplace();
    metrics::RankRates before;
    add_arrivals(before);
  }
  reported_at_ = Due::Clock::now();
  if (checkpointing_) {
    checkpointing_->begin_steps();
  }
}

void RankTask::now_at(std::string_view phase, std::int64_t step, std::string_view activity) {
  settings_.link.now_at(phase, step);
  if (!activity.empty()) {
    record_.now_at(activity);
  }
}

void RankTask::resume(const runtime::Executor& executor) {
  if (compiled_.resumed != nullptr) {
    now_at("loading the checkpoint", 0, "loading the checkpoint");
    load_resumed(job_, compiled_, executor, settings_.link);
  }
}

void RankTask::tell_memory(std::string_view field, std::uint64_t bytes) {
  record_.tell(std::array<metrics::JsonField, 1>{{{field, static_cast<std::int64_t>(bytes)}}});
}

metrics::RankRates RankTask::rates_of(std::int64_t step, const StepMeasure& measured) {
  // Steps use the same memory each time, so it is measured only after 1, 2, 4, 8 steps and so on.
  if (!job_.metrics.prometheus.empty() && std::has_single_bit(static_cast<std::uint64_t>(step + 1 - first_.step))) {
    tell_memory("peak_bytes", executor_->touched_bytes());
  }
  metrics::RankRates rates{.step = step + 1,
                           .stage = stage_,
                           .seconds = measured.duration,
                           .communicating = measured.exposed + measured.hidden,
                           .waiting = measured.exposed,
                           .input = measured.input,
                           .late = measured.late,
                           .starved = measured.starved.all,
                           .starved_waiting = measured.starved.waiting,
                           .flops = flops_};
  for (const auto& [axis, collectives] : measured.sent) {
    for (const auto& [collective, bytes] : collectives) {
      rates.bytes += static_cast<double>(bytes);
    }
  }
  const bool shows = settings_.profile && compiled_.engine == nullptr;
  if (shows || settings_.link.world_size() > 1) {
    since_reported_.add(rates);
  }
  if (shows && (rates.step % profile_interval(job_) == 0 || rates.step == last_step_)) {
    report_rates();
  }
  return rates;
}

void RankTask::report_rates() {
  if (since_reported_.steps() == 0) {
    return;
  }
  metrics::RankRates rates = since_reported_.take();
  rates.fastest = settings_.profile ? fastest_of(executor_->profile()) : 0;
  if (stops_) {
    const Stops::Sum stops = stops_->sum();
    rates.stops = stops.count - reported_stops_.count;
    rates.stopped = stops.seconds - reported_stops_.seconds;
    reported_stops_ = stops;
    add_arrivals(rates);
  }
  settings_.display.rates(rates);
  reported_at_ = Due::Clock::now();
}

void RankTask::add_arrivals(metrics::RankRates& rates) {
  std::vector<sdk::Arrivals> now;
  for (int from = 0; from < settings_.link.world_size(); ++from) {
    now.push_back(settings_.link.arrivals(from));
  }
  set_links(rates, arrivals_, now);
  arrivals_ = std::move(now);
}

Due RankTask::own_due(int steps_to_come) {
  constexpr std::int64_t enough_steps = 10;  // for quartiles
  constexpr std::chrono::milliseconds shortest{500};
  constexpr std::chrono::milliseconds longest{2000};
  Due due = checkpointing_ ? checkpointing_->due(steps_to_come) : Due{};
  if (record_.is_first() && settings_.link.world_size() > 1 && since_reported_.steps() > 0) {
    due.report = reported_at_ + (since_reported_.steps() >= enough_steps ? shortest : longest);
  }
  return due;
}

std::optional<double> RankTask::utilisation(const metrics::RankRates& rates) const {
  return rates.flops > 0 && job_.cluster.flops > 0 ? std::optional(rates.flops_per_s() / job_.cluster.flops)
                                                   : std::nullopt;
}

Wish RankTask::agreed(int steps_to_come) { return settings_.link.agree_on_stop(own_due(steps_to_come).wish()); }

int RankTask::act_on(const Wish& wish) {
  if (checkpointing_) {
    checkpointing_->look();
    const std::int64_t done = first_.step + record_.summary.steps;
    if (wish.signal == 0 && done < last_step_ && (wish.save || checkpointing_->is_due(done))) {
      save_checkpoint(false);
    }
  }
  return wish.signal;
}

int RankTask::between_steps(std::int64_t step, int heard) {
  return naming_step(step, [&] {
    const Wish wish = heard != 0 ? Wish{.signal = heard} : agreed();
    evaluated_ = heard == 0;
    if (wish.report) {
      report_rates();
    }
    return act_on(wish);
  });
}

void RankTask::begin_step(std::int64_t step, runtime::Executor& executor, const std::function<void()>& give) {
  executor.begin_step(step);
  naming_step(step, [&] {
    under_way_.push_back({step, StepMeter(executor)});
    give();
    under_way_.back().meter.all_is_given();
    // 1: when the ranks have agreed, each device usually has the next step already.
    settings_.link.begin_agreement(step, own_due(1));
  });
}

int RankTask::end_steps(std::size_t most, const std::function<void(const UnderWay&)>& end) {
  Wish wish;
  std::int64_t last = 0;
  bool has_ended = false;
  while (under_way_.size() > most) {
    last = under_way_.front().step;
    naming_step(last, [&] {
      end(under_way_.front());
      if (checkpointing_) {
        checkpointing_->step_took(under_way_.front().meter.seconds());
      }
      under_way_.pop_front();
      if (!under_way_.empty()) {
        under_way_.front().meter.begin_again();
      }
      const Wish of_step = settings_.link.end_agreement(last);
      if (of_step.report) {
        report_rates();
      }
      wish = {.signal = wish.signal != 0 ? wish.signal : of_step.signal,
              .save = wish.save || of_step.save,
              .pause = wish.pause || of_step.pause};
    });
    most = wish.signal != 0 || wish.save || wish.pause ? 0 : most;
    has_ended = true;
  }
  if (!has_ended) {
    return 0;
  }
  return naming_step(last, [&] {
    evaluated_ = true;
    const int signal = act_on(wish);
    if (signal == 0 && wish.pause) {
      settings_.link.pause();
    }
    return signal;
  });
}

bool RankTask::ends_at_once(std::int64_t step) const {
  return settings_.profile || step + 1 >= last_step_ || (tracer_ && tracer_->records(step - first_.step)) ||
         (job_.check_every > 0 && (step + 1) % job_.check_every == 0) ||
         (checkpointing_ && checkpointing_->is_due(step + 1));
}

void RankTask::save_checkpoint(bool at_end) {
  const std::int64_t step = first_.step + record_.summary.steps;
  check_before_save(false);
  checkpointing_->save({.step = step,
                        .samples = checkpoint::samples_after(job_, first_, step),
                        .evaluated = evaluated_,
                        .loss = record_.summary.loss,
                        .val_loss = record_.summary.val_loss ? record_.summary.val_loss : first_.val_loss},
                       at_end);
}

void RankTask::save_at_end(int signal) {
  if (!checkpointing_) {
    return;
  }
  now_at("saving a checkpoint", first_.step + record_.summary.steps);
  if (signal == time_limit_signal) {
    record_.say("[job] time_limit: ends now, to save in time");
  }
  checkpointing_->await_writer();
  if (checkpointing_->last_whole() != first_.step + record_.summary.steps) {
    save_checkpoint(true);
  }
  if (signal != 0) {  // a run that has come to its end has its results already
    checkpointing_->require_whole(first_.step + record_.summary.steps);
  }
}

void RankTask::begin_traced(std::int64_t step) {
  if (tracer_) {
    recording_.reset();
    write_trace_if_due();
    recording_.emplace(*tracer_, *executor_, step);
  }
}

void RankTask::end_traced(bool existed) {
  if (recording_ && !existed) {
    recording_->discard();
  }
  recording_.reset();
}

void RankTask::write_trace_if_due() {
  if (tracer_ && tracer_->is_due()) {
    tracer_->write(job_.output);
  }
}

/// Writes the trace of a run that ended before all steps were recorded. An error here does not fail the run.
void RankTask::write_trace_at_end() {
  try {
    end_traced(true);
    if (tracer_ && !tracer_->has_steps() && job_.task == job::Task::infer && record_.is_first()) {
      record_.say(fmt::format("no trace: {} predicted, and it begins with number {} ([job] trace_first)",
                              counted(record_.summary.steps, "record"), job_.trace_first));
    }
    if (tracer_) {
      tracer_->write(job_.output);
    }
  } catch (const Error& error) {
    record_.say(error.message());
  }
}

/// Compares replicas. `step`: the number of steps done.
void RankTask::check_replicas(std::int64_t step) {
  if (!replicas_ || !replicas_->exist()) {
    return;
  }
  now_at("comparing replicas", step);
  const auto begin = std::chrono::steady_clock::now();
  replicas_->compare(step);
  record_.summary.check_s += metrics::seconds_since(begin);
  ++record_.summary.checks;
}

void RankTask::check_replicas_after(std::int64_t step, bool anyway) {
  if (checks_after(step, anyway)) {
    naming_step(step, [&] { check_replicas(step + 1); });
  }
}

void RankTask::check_before_save(bool changed) {
  const std::int64_t step = first_.step + record_.summary.steps;
  if (changed || (replicas_ && replicas_->last_equal() != step)) {
    naming_step(step - 1, [&] { check_replicas(step); });
  }
}

void RankTask::save_results(const std::vector<checkpoint::StateFile>& files, const runtime::Executor& executor) {
  record_.results_are(Results::being_written);
  save(files, executor);
  record_.results_are(Results::saved);
}

void RankTask::save(const std::vector<checkpoint::StateFile>& files, const runtime::Executor& executor) {
  static_cast<void>(executor.queue());  // waits: also a rank that writes nothing can have a failed transfer
  const std::int64_t rank = settings_.link.rank();
  const auto require_folder = [&] { settings_.folder.require_owned(); };
  for (const checkpoint::StateFile& file : files) {
    now_at("writing what the ranks hold", 0, "writing " + file.path.filename().string());
    require_folder();
    if (rank == 0) {
      files::create_folders(file.path.parent_path(), "the folder of outputs");
    }
    const checkpoint::SaveCallbacks callbacks = {.await_ranks = [&] { settings_.link.barrier(); },
                                                 .parts_are_written = [&] { executor.verify_states(); },
                                                 .before_commit = require_folder};
    if (compiled_.engine != nullptr) {
      const auto parts_of = [&](std::int64_t of) {
        return compile::saved_parts(*compiled_.engine, static_cast<std::uint32_t>(of), compiled_.graph);
      };
      checkpoint::save_parts(file, job_.ranks, parts_of, executor, rank, callbacks);
    } else {
      checkpoint::save_states(file, compiled_.graph, compiled_.partition, executor, rank, callbacks);
    }
  }
}

}  // namespace shardrun::train
