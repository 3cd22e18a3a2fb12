#include "core/verify/job.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "core/base/error.h"
#include "core/runtime/executor.h"
#include "core/task/compile.h"
#include "core/task/rank_link.h"
#include "core/task/rank_reports.h"
#include "core/task/ranks.h"
#include "core/task/training.h"
#include "core/verify/snapshot.h"
#include "core/verify/verify.h"

namespace shardrun::verify {
namespace {

/// A folder of its own, removed with all that is in it.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "shardrun-verify-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw Error(ErrorCode::io, fmt::format("no folder for the ranks' states in {}: {}",
                                             std::filesystem::temp_directory_path().string(), std::strerror(errno)));
    }
    path_ = name;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

/// Does the first steps and leaves what this rank holds at each moment.
class Recorder {
 public:
  /// `link`: null where there is one rank. `say` is told of every step. `stop_signal` is asked after each where there
  /// is one rank; several ask each other.
  Recorder(const job::Job& job, task::Compiled& compiled, task::RankLink* link,
           std::function<void(const std::string&)> say, std::function<int()> stop_signal)
      : job_(job), compiled_(compiled), link_(link), say_(std::move(say)), stop_signal_(std::move(stop_signal)) {}

  /// The signal that asked to stop before all was recorded, or 0.
  int train(std::int64_t steps) {
    task::Training training(job_, compiled_);
    runtime::Executor& executor = training.executor();
    connect(executor);
    runtime::initialize(compiled_.graph, job_.seed, executor);
    for (std::int64_t step = 0; step < steps; ++step) {
      write(step, Moment::begin, executor);
      const double loss = training.differentiate(step);
      write(step, Moment::gradients, executor);
      (void)training.update(step);
      write(step, Moment::end, executor);
      say_(fmt::format("step {}/{}  loss {:.4f}", step + 1, steps, loss));
      if (const int signal = asked_to_stop()) {
        return signal;
      }
    }
    if (training.evaluate()) {
      write(steps - 1, Moment::evaluation, executor);
    }
    finish();
    return 0;
  }

  int iterate(std::int64_t steps) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    connect(executor);
    runtime::initialize(compiled_.graph, job_.seed, executor);
    const std::size_t program = executor.find("iterate", 0);
    for (std::int64_t step = 0; step < steps; ++step) {
      write(step, Moment::begin, executor);
      executor.run(program, {.seed = job_.seed, .step = step});
      write(step, Moment::end, executor);
      say_(fmt::format("step {}/{}", step + 1, steps));
      if (const int signal = asked_to_stop()) {
        return signal;
      }
    }
    finish();
    return 0;
  }

 private:
  [[nodiscard]] std::int64_t rank() const { return link_ == nullptr ? 0 : link_->rank(); }

  [[nodiscard]] int asked_to_stop() { return link_ != nullptr ? link_->agree_on_stop() : stop_signal_(); }

  void connect(runtime::Executor& executor) {
    if (link_ != nullptr) {
      link_->connect(executor);
    }
  }

  void finish() {
    if (link_ != nullptr) {
      link_->barrier();
    }
  }

  void write(std::int64_t step, Moment moment, const runtime::Executor& executor) {
    write_snapshot(job_.output, step, moment, rank(), compiled_.graph, executor);
  }

  const job::Job& job_;
  task::Compiled& compiled_;
  task::RankLink* link_;
  std::function<void(const std::string&)> say_;
  std::function<int()> stop_signal_;
};

int record(Recorder& recorder, const job::Job& job, std::int64_t steps) {
  return job.task == job::Task::train ? recorder.train(steps) : recorder.iterate(steps);
}

/// What varies from rank to rank on purpose is several models, which no single reference can be held against.
void require_one_model(const job::Job& job, const task::Compiled& compiled) {
  const partition::Placements& placements = compiled.partition.placements;
  for (std::size_t s = 0; s < compiled.graph.states.size(); ++s) {
    const graph::State& state = compiled.graph.states[s];
    if (state.kind == graph::StateKind::parameter && !placements.states[s].varying.empty()) {
      throw Error(
          ErrorCode::job,
          fmt::format("{}: strategy {} lets each rank along mesh axis '{}' have its own {}: that is not one model, and "
                      "verify has one to compare with. Compare the runs' losses, or verify with another strategy",
                      job.where("job", "strategy"), job.strategy.name,
                      placements.mesh.axes[static_cast<std::size_t>(placements.states[s].varying.front())].name,
                      state.name));
    }
  }
}

}  // namespace

JobOutcome verify_job(const job::Job& job, std::int64_t steps, const task::RunSettings& settings) {
  task::Compiled compiled = task::compile(job);
  task::require_runnable(job, compiled, job.ranks);
  task::require_launchable(job, compiled);
  require_one_model(job, compiled);
  JobOutcome outcome;
  if (const auto stopped = task::stopped_before_start(settings)) {
    outcome.summary = *stopped;
    return outcome;
  }
  const ScratchFolder folder;
  job::Job copy = job;
  copy.output = folder.path();
  const std::function<int()> stop_signal = settings.stop_signal ? settings.stop_signal : [] { return 0; };
  if (job.ranks == 1) {
    metrics::Progress progress(settings.progress, steps, 1);
    Recorder recorder(
        copy, compiled, nullptr, [&](const std::string& line) { progress.print(line); }, stop_signal);
    (void)record(recorder, copy, steps);
  } else {
    outcome.summary = task::run_ranks(copy, settings, {"--record-steps", std::to_string(steps)});
    if (outcome.summary.exit_code != 0) {
      return outcome;
    }
  }
  outcome.summary.status = "finished";
  // The reference keeps what the ranks compute again, so that a fault in what is repeated shows.
  compiled.graph = task::graph_without_remat(job, compiled);
  try {
    outcome.report = verify_snapshots(
        folder.path(), copy, compiled, steps, [&] { return stop_signal() != 0; },
        [&](std::int64_t step) {
          settings.progress.write(fmt::format("comparing step {}/{} with the reference\n", step + 1, steps));
        });
  } catch (const Error&) {
    if (stop_signal() == 0) {
      throw;
    }
  }
  if (const int signal = stop_signal()) {
    outcome.summary.status = "stopped";
    outcome.summary.exit_code = 128 + signal;
  }
  return outcome;
}

int record_as_rank(const job::Job& job, const launch::RankContext& context, std::int64_t steps) {
  return task::as_rank(job, context, [&](task::Compiled& compiled, task::RankLink& link) {
    Recorder recorder(
        job, compiled, &link,
        [&](const std::string& line) {
          if (link.rank() == 0) {
            link.message(task::line_message, line);
          }
        },
        [] { return 0; });
    const int signal = record(recorder, job, steps);
    return signal == 0 ? 0 : 128 + signal;
  });
}

}  // namespace shardrun::verify
