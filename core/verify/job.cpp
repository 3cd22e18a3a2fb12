#include "core/verify/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/stop.h"
#include "core/checkpoint/saved_state.h"
#include "core/compile/compile.h"
#include "core/files/scratch_folder.h"
#include "core/run/launched.h"
#include "core/run/prepare.h"
#include "core/run/rank_reports.h"
#include "core/run/requirements.h"
#include "core/runtime/executor.h"
#include "core/train/engine_training.h"
#include "core/train/rank_link.h"
#include "core/train/steps.h"
#include "core/train/training.h"
#include "core/verify/meter.h"
#include "core/verify/selection.h"
#include "core/verify/sequences.h"
#include "core/verify/snapshot.h"
#include "core/verify/verify.h"
#include "core/workload/program.h"

namespace shardrun::verify {
namespace {

/// How many steps a rank records, and whether it records an evaluation.
struct Extent {
  std::int64_t steps;
  bool evaluates;
};

/// Runs the first steps, and records at each moment what this rank holds.
class Recorder {
 public:
  /// `meter`: shows the progress; null: none is shown.
  Recorder(const job::Job& job, compile::Compiled& compiled, train::RankLink& link, Meter* meter)
      : job_(job), compiled_(compiled), link_(link), meter_(meter), instruction_work_(compiled.programs, meter) {
    if (compiled.engine != nullptr) {
      place_of_ = [&](graph::StateId id) { return compile::place_of(*compiled.engine, compiled.graph, id); };
    }
  }

  /// Returns the signal that asked to stop before everything was recorded; 0 if none did.
  int train(Extent extent) {
    const std::unique_ptr<train::Trainer> trainer = make_trainer();
    train::Trainer& training = *trainer;
    runtime::Executor& executor = training.executor();
    const std::vector<std::size_t> evaluation =
        extent.evaluates ? executor.find_calls(workload::evaluate_function, compiled_.evaluation_rows)
                         : std::vector<std::size_t>();
    begin(extent.steps, evaluation, executor);
    training.initialize();
    for (std::int64_t step = 0; step < extent.steps; ++step) {
      begin_step(step, extent.steps);
      write(step, Moment::begin, executor);
      const double loss = training.differentiate(step);
      write(step, Moment::gradients, executor);
      (void)training.update(step);
      write(step, Moment::end, executor);
      say(fmt::format("step {}/{}  loss {:.4f}", step + 1, extent.steps, loss));
      if (const int signal = link_.agree_on_stop().signal) {
        return signal;
      }
    }
    if (extent.evaluates && compiled_.dataset->evaluation_samples() > 0) {
      at("validation");
      instruction_work_.follow(evaluation);
      (void)training.evaluate();
      write(extent.steps - 1, Moment::evaluation, executor);
    }
    link_.barrier();
    return 0;
  }

  int predict(Extent extent) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    begin(extent.steps, {}, executor);
    runtime::initialize(compiled_.graph, job_.seed, executor);
    checkpoint::load_parameters(compiled_.weights->source(), compiled_.graph, executor);
    write(0, Moment::begin, executor);
    const Workload workload = workload_of(job_, compiled_);
    for (std::int64_t step = 0; step < extent.steps; ++step) {
      begin_step(step, extent.steps);
      const Call call = update_call(workload, step);
      const std::size_t program = executor.find_calls(call.function, {call.rows}).front();
      feed(workload, call, executor, program);
      executor.run(program, call.scalars);
      write_predictions(job_.output, step, link_.rank(), executor, program, kept_output(workload, step));
      say(fmt::format("batch {}/{}", step + 1, extent.steps));
      if (const int signal = link_.agree_on_stop().signal) {
        return signal;
      }
    }
    link_.barrier();
    return 0;
  }

  int iterate(Extent extent) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    begin(extent.steps, {}, executor);
    checkpoint::initialize_states(job_, compiled_.graph, executor);
    const std::size_t program = executor.find(graph::Role::once);
    for (std::int64_t step = 0; step < extent.steps; ++step) {
      begin_step(step, extent.steps);
      write(step, Moment::begin, executor);
      executor.run(program,
                   train::feed_iteration(job_, compiled_, executor, program, step, step * compiled_.iterated_rows));
      write(step, Moment::end, executor);
      say(fmt::format("step {}/{}", step + 1, extent.steps));
      if (const int signal = link_.agree_on_stop().signal) {
        return signal;
      }
    }
    link_.barrier();
    return 0;
  }

 private:
  [[nodiscard]] std::unique_ptr<train::Trainer> make_trainer() const {
    if (compiled_.engine != nullptr) {
      return std::make_unique<train::EngineTraining>(job_, compiled_, link_);
    }
    return std::make_unique<train::Training>(job_, compiled_);
  }

  /// Connects the ranks, and tells the meter the total work.
  void begin(std::int64_t steps, const std::vector<std::size_t>& evaluation, runtime::Executor& executor) {
    link_.connect(executor);
    if (meter_ == nullptr || compiled_.engine != nullptr) {
      return;  // the work of an engine is unknown
    }
    std::int64_t work = 0;
    for (const std::size_t program : compile::programs_of_step(compiled_, compiled_.programs)) {
      work += steps * work_of(compiled_.programs.programs[program]);
    }
    for (const std::size_t program : evaluation) {
      work += work_of(compiled_.programs.programs[program]);
    }
    meter_->expect(work);
    executor.end_where([this] {
      instruction_work_.step();
      return false;
    });
  }

  void begin_step(std::int64_t step, std::int64_t steps) {
    instruction_work_.follow(compile::programs_of_step(compiled_, compiled_.programs));
    at(fmt::format("step {}/{}", step + 1, steps));
  }

  void at(const std::string& what) {
    if (meter_ != nullptr) {
      meter_->at(what);
    }
  }

  void say(const std::string& line) {
    if (meter_ != nullptr) {
      meter_->print(line);
    }
  }

  void write(std::int64_t step, Moment moment, const runtime::Executor& executor) {
    write_snapshot(job_.output, step, moment, link_.rank(), compiled_.graph, executor, place_of_);
  }

  const job::Job& job_;
  compile::Compiled& compiled_;
  train::RankLink& link_;
  Meter* meter_;
  InstructionWork instruction_work_;
  PlaceOf place_of_;  ///< where the parts of an engine are; empty without an engine
};

int record(Recorder& recorder, const job::Job& job, Extent extent) {
  return job.task == job::Task::train   ? recorder.train(extent)
         : job.task == job::Task::infer ? recorder.predict(extent)
                                        : recorder.iterate(extent);
}

constexpr const char* title_of_job = "running the job";

/// The file in [job] output for the answers to prompts.
constexpr const char* answers_name = "answers";

/// Continues the job's first prompts, and records all logits that this rank computes.
int record_sequences(const job::Job& job, std::int64_t prompts, compile::Compiled& compiled, train::RankLink& link,
                     metrics::Display& display, const metrics::RunFolder& folder) {
  job::Job recorded = link.job();
  recorded.infer.to = job.output / answers_name;
  if (recorded.infer.events) {  // `answers` holds no events, so the screen shows which lines are refused
    recorded.infer.events = false;
    recorded.infer.malformed = job::Malformed::skip;
  }
  SequenceRecorder recorder;
  const auto least = [&](std::int64_t number) {
    constexpr std::int32_t most = std::numeric_limits<std::int32_t>::max();
    return std::int64_t{most} - link.agree(most - static_cast<std::int32_t>(number), most);
  };
  const train::StepSettings settings{
      .display = display,
      .folder = folder,
      .link = link,
      .prompts = prompts,
      .begun =
          [&](const runtime::Executor& executor) {
            write_snapshot(job.output, 0, Moment::begin, link.rank(), compiled.graph, executor);
          },
      .computed = [&](const infer::Computed& computed) { recorder.take(computed); },
      .added = [&](std::int64_t number, std::int64_t line, const std::string& id) { recorder.name(number, line, id); },
      .parted = [&] { recorder.part(least); }};
  metrics::Summary failed;
  const metrics::Summary summary = train::run_steps(recorded, compiled, settings, failed);
  recorder.write(job.output, link.rank());
  link.barrier();
  return summary.exit_code;
}

/// Throws Error{job} if the strategy lets parameters differ between ranks, because there is only one reference.
void require_one_model(const job::Job& job, const compile::Compiled& compiled) {
  const partition::Placements& placements = compiled.partition.placements;
  for (const graph::StateId s : compiled.graph.states.ids()) {
    const graph::State& state = compiled.graph.states[s];
    if (state.kind == graph::StateKind::parameter && !placements.states[s].varying.empty()) {
      throw Error(
          ErrorCode::job,
          fmt::format("{}: strategy {} lets each rank along mesh axis '{}' have its own {}: that is not one model, and "
                      "verify has one to compare with. Compare the runs' losses, or verify with another strategy",
                      job.where("job", "strategy"), job.strategy.name,
                      placements.mesh.axes[placements.states[s].varying.front()].name, state.name));
    }
  }
}

/// Runs the job's ranks, which write snapshots to [job] output. The summary's exit code tells whether they succeeded.
metrics::Summary record_ranks(const job::Job& job, compile::Compiled& compiled, const JobSettings& verified,
                              bool evaluates, const std::function<int()>& stop_signal) {
  const run::RunSettings& settings = verified.run;
  if (job.ranks == 1 && !job::generates(job)) {  // continuing prompts needs the RunFolder of a rank's process
    run::use_unit(job, *compiled.device, 0, 1);
    Meter meter(settings.progress, title_of_job);
    train::RankLink link(job, compiled, nullptr, stop_signal);
    Recorder recorder(job, compiled, link, &meter);
    (void)record(recorder, job, {verified.steps, evaluates});
    return {};
  }
  settings.progress.write(fmt::format("{}: starting {}\n", title_of_job, counted(job.ranks, "rank")));
  return run::run_ranks(
      job, settings, compiled.dataset.get(), nullptr,
      {"--record-steps", std::to_string(verified.steps), "--record-evaluation", evaluates ? "yes" : "no"});
}

void require_interpretable(const job::Job& job, const compile::Compiled& compiled) {
  if (job::generates(job)) {
    throw Error(ErrorCode::usage,
                fmt::format("--in-process: {}: the ranks of a job that continues prompts are processes of their own; "
                            "leave it out, so that they are started",
                            job.where("infer", "tokens")));
  }
  if (compiled.engine != nullptr) {
    throw Error(ErrorCode::usage,
                fmt::format("--in-process: {}: an engine's ranks are processes of their own; leave it "
                            "out, so that they are started",
                            job.where("job", "engine")));
  }
}

/// Like record_ranks(), but all ranks run in this process. Calls `stop_signal` at each moment of a step.
metrics::Summary record_interpreted(const job::Job& job, const compile::Compiled& compiled, const Workload& workload,
                                    const JobSettings& verified, const std::function<int()>& stop_signal) {
  run::use_unit(job, *compiled.device, 0, 1);
  Meter meter(verified.run.progress, title_of_job);
  const InterpretedSettings settings{.device = compiled.device->name(),
                                     .threads = compile::threads_of(job, 1),
                                     .steps = verified.steps,
                                     .hooks = compiled.hooks.get()};
  const auto record = [&](std::int64_t step, Moment moment, runtime::Interpreter& ranks) {
    meter.at(fmt::format("step {}/{}", step + 1, verified.steps));
    if (const int signal = stop_signal()) {
      throw Error(ErrorCode::aborted, fmt::format("stopped by signal {}", signal));
    }
    for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
      const auto number = static_cast<std::int64_t>(rank);
      if (workload.predicts() && moment == Moment::end) {
        const Call call = update_call(workload, step);
        write_predictions(job.output, step, number, ranks.rank(rank),
                          ranks.rank(rank).find_calls(call.function, {call.rows}).front(), kept_output(workload, step));
      } else {
        write_snapshot(job.output, step, moment, number, compiled.graph, ranks.rank(rank));
      }
    }
  };
  try {
    interpret(workload, compiled.partition, settings, record);
  } catch (const Error&) {
    if (stop_signal() == 0) {
      throw;
    }
    metrics::Summary stopped;
    stopped.status = "stopped";
    stopped.exit_code = 128 + stop_signal();
    return stopped;
  }
  return {};
}

/// Compares the snapshots in `folder` with the reference. Returns an empty report if a signal asked to stop.
/// `compiled`: the model that the reference computes.
Report compare_snapshots(const std::filesystem::path& folder, const job::Job& job, const compile::Compiled& compiled,
                         std::vector<Workload::Sequence> sequences, const JobSettings& verified,
                         const Selection& selection, bool evaluates, const std::function<int()>& stop_signal) {
  job::Job alone = job;
  alone.threads = 0;  // the ranks have ended, so the reference may use all cores
  Workload workload = workload_of(job, compiled);
  workload.sequences = std::move(sequences);
  if (!evaluates) {
    workload.evaluation_rows.clear();
  }
  try {
    Meter meter(verified.run.progress, "comparing with the reference");
    return verify_snapshots(workload, {.folder = folder,
                                       .ranks = job.ranks,
                                       .steps = verified.steps,
                                       .threads = compile::threads_of(alone, 1),
                                       .selection = selection,
                                       .stops = [&] { return stop_signal() != 0; },
                                       .meter = &meter});
  } catch (const Error&) {
    if (stop_signal() == 0) {
      throw;
    }
  }
  return {};
}

/// All that is needed for the comparison, once every check has passed.
struct Verification {
  run::Prepared prepared;
  std::optional<compile::Compiled> of_model;  ///< if an engine runs the job: its model, compiled for the reference
  Selection selection;
  std::int64_t steps = 1;
  bool evaluates = false;

  [[nodiscard]] compile::Compiled& reference() { return of_model ? *of_model : prepared.compiled; }
};

/// Throws Error{usage} for a glob that matches no tensor and no sequence that a run can have. The run's sequences are
/// known only afterwards, because lines that are no prompts are skipped.
void require_sequences(const job::Job& job, const compile::Compiled& compiled, const JobSettings& verified) {
  if (verified.tensors.empty()) {
    return;
  }
  graph::Graph graph = compiled.graph;
  const std::int64_t most = std::min(verified.steps, data::prompts_of(job).value_or(verified.steps));
  for (std::int64_t number = 1; number <= most; ++number) {
    graph.add_state({.name = sequence_name(number), .kind = graph::StateKind::output});
  }
  (void)select(graph, verified.tensors);
}

/// Tells why fewer prompts than asked for are compared. Throws Error{data} if there are none.
void tell_missing(const job::Job& job, const JobSettings& verified, std::int64_t compared, bool parted) {
  if (compared == 0) {
    const std::int64_t lines = data::prompts_of(job).value_or(0);
    throw Error(
        ErrorCode::data,
        fmt::format("{}: [infer] from: '{}' has no prompts{}", job.where("infer", "from"), job.infer.from.string(),
                    lines == 0 ? "" : fmt::format(": {} skipped", counted(lines, "line is", "lines are"))));
  }
  if (parted) {
    verified.run.progress.write("the ranks drew different tokens: no more were drawn\n");
  } else if (compared < verified.steps) {
    verified.run.progress.write(fmt::format("'{}' has {}, fewer than the {} to compare\n", job.infer.from.string(),
                                            counted(compared, "prompt"), verified.steps));
  }
}

Verification prepare_verification(const job::Job& job, const JobSettings& verified) {
  if (data::reads_records(job)) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [infer] from is a stream, and {}: name one", job.where("infer", "from"),
                            job::generates(job) ? "verify reads prompts from a file"
                                                : "predictions are verified of a file of one array"));
  }
  Verification verification = {
      .prepared = run::prepare(
          job, {.ranks_here = job.ranks, .processes = verified.in_process ? 0 : job.ranks, .writes = false}),
      .of_model = {},
      .selection = {}};
  const compile::Compiled& compiled = verification.prepared.compiled;
  if (compiled.engine != nullptr) {
    verification.of_model = compile::compile_reference(job, compiled);
  }
  require_one_model(job, compiled);
  if (verified.in_process) {
    require_interpretable(job, compiled);
  }
  verification.steps = verified.steps;
  if (job::applies_model(job) && !job::generates(job)) {
    verification.steps = std::min(verified.steps, std::ssize(compiled.evaluation_rows));
  }
  if (job::generates(job)) {
    require_sequences(job, compiled, verified);
  } else {
    const graph::Graph graph = compile::reference_graph(job, verification.reference());
    verification.selection = select(graph, verified.tensors);
    const graph::StateId loss = graph.find_state("loss");
    verification.evaluates = loss.exists() && is_selected(verification.selection, loss);
  }
  run::prepare_data(job, verification.prepared);
  return verification;
}

}  // namespace

JobOutcome verify_job(const job::Job& job, const JobSettings& asked) {
  JobSettings verified = asked;
  const run::RunSettings& settings = verified.run;
  std::optional<Verification> verification;
  try {
    verification.emplace(prepare_verification(job, verified));
  } catch (const Stopped& stopped) {
    return {.summary = run::stopped_early(job, stopped.signal(), "before anything was started")};
  }
  if (const auto stopped = run::stopped_before_start(job, settings)) {
    return {.summary = *stopped};
  }
  verified.steps = verification->steps;
  compile::Compiled& compiled = verification->prepared.compiled;
  compile::Compiled& reference = verification->reference();
  Selection& selection = verification->selection;
  const bool evaluates = verification->evaluates;
  const files::ScratchFolder folder("shardrun-verify", "the ranks' states");
  job::Job copy = job;
  copy.output = folder.path() / "run";  // a folder that the ranks can lock; this process has locked the scratch folder
  std::filesystem::create_directory(copy.output);
  copy.checkpoints.used = false;
  copy.restarts = 0;
  copy.infer.to = copy.output / answers_name;  // so that no events go to standard output
  const std::function<int()> stop_signal = settings.stop_signal ? settings.stop_signal : [] { return 0; };
  JobOutcome outcome;
  if (verified.in_process) {
    Workload workload = workload_of(copy, compiled);
    if (!evaluates) {
      workload.evaluation_rows.clear();
    }
    outcome.summary = record_interpreted(copy, compiled, workload, verified, stop_signal);
  } else {
    outcome.summary = record_ranks(copy, compiled, verified, evaluates, stop_signal);
  }
  if (outcome.summary.exit_code != 0) {
    if (outcome.summary.status == "stopped") {
      outcome.summary.error.clear();  // the text counts steps of training
    }
    return outcome;
  }
  outcome.summary.status = "finished";
  // The reference does not recompute activations, so that errors in the ranks' recomputation are found.
  std::vector<Workload::Sequence> sequences;
  bool parted = false;
  if (job::generates(job)) {
    sequences = read_sequences(copy.output);
    parted = !sequences.empty() && have_parted(copy.output);
    tell_missing(job, verified, std::ssize(sequences), parted);
    reference.graph = graph_of_sequences(job, reference, sequences);
    selection = select(reference.graph, verified.tensors);
    verified.steps = std::ssize(sequences);
  } else {
    reference.graph = compile::reference_graph(job, reference);
  }
  outcome.report =
      compare_snapshots(copy.output, job, reference, std::move(sequences), verified, selection, evaluates, stop_signal);
  if (const int signal = stop_signal()) {
    outcome.summary.status = "stopped";
    outcome.summary.exit_code = 128 + signal;
  } else if (parted && outcome.report.passed()) {
    throw Error(ErrorCode::internal, "the ranks drew different tokens, and all that was compared agrees");
  }
  return outcome;
}

int record_as_rank(const job::Job& job, const launch::RankContext& context, std::int64_t steps, bool evaluates,
                   run::RankInputs inputs) {
  const auto work = [&](compile::Compiled& compiled, train::RankLink& link, const metrics::RunFolder& folder) {
    // The launcher shows what the first rank prints, line by line.
    const std::unique_ptr<metrics::Display> display = run::display_of_launcher(link);
    Meter meter({.write = [&](std::string_view text) { display->line(text.substr(0, text.size() - 1)); },
                 .now = [] { return std::chrono::steady_clock::now(); }},
                title_of_job);
    if (link.rank() == 0) {
      display->now_at(title_of_job);
    }
    if (job::generates(job)) {
      return record_sequences(job, steps, compiled, link, *display, folder);
    }
    Recorder recorder(job, compiled, link, link.rank() == 0 ? &meter : nullptr);
    const int signal = record(recorder, job, {steps, evaluates});
    return signal == 0 ? 0 : 128 + signal;
  };
  return run::as_rank(job, context, work, std::move(inputs));
}

}  // namespace shardrun::verify
