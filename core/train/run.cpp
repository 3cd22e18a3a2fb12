#include "core/train/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/saved_state.h"
#include "core/compile/compile.h"
#include "core/compile/plugins.h"
#include "core/data/dataset.h"
#include "core/device/cores.h"
#include "core/files/atomic_file.h"
#include "core/forecast/disk.h"
#include "core/forecast/fit.h"
#include "core/forecast/forecast.h"
#include "core/forecast/idle.h"
#include "core/memory/machine.h"
#include "core/metrics/human.h"
#include "core/metrics/log.h"
#include "core/metrics/rundir.h"
#include "core/train/local_display.h"
#include "core/train/ranks.h"
#include "core/train/tracer.h"
#include "core/train/work.h"

namespace shardrun::train {
namespace {

/// What binds the job's memory.
struct Limits {
  std::optional<memory::MemoryRoom> memory = memory::available_memory();       ///< of all ranks here
  std::optional<memory::MemoryRoom> addresses = memory::address_space();       ///< of each rank
  std::optional<memory::MemoryRoom> slowing = memory::memory_at_full_speed();  ///< of all ranks here
};

std::string text_of(const memory::MemoryRoom& room) {
  return to_string(room, metrics::human_bytes(room.bytes), metrics::human_bytes(room.limit));
}

std::uint64_t fullest_of(const forecast::Forecast& forecast) {
  std::uint64_t most = 0;
  for (const forecast::RankForecast& alike : forecast.ranks) {
    most = std::max(most, alike.memory.peak);
  }
  return most;
}

/// The tokens of the job's text, where they have yet to be made.
std::uint64_t bytes_of_text(const compile::Compiled& compiled) {
  return compiled.dataset == nullptr ? 0 : compiled.dataset->bytes_to_load();
}

/// The arena is given page by page: without this the kernel would kill a job that is too large in the middle of a step.
/// Which of several hosts' ranks are here is not known: there each rank asks for as many of itself.
void require_memory(const job::Job& job, const compile::Compiled& compiled, const forecast::Forecast& forecast,
                    std::int64_t ranks_here, const Limits& limits) {
  const std::uint64_t text = bytes_of_text(compiled);
  const std::uint64_t needed =
      text + (ranks_here == job.ranks
                  ? forecast::bytes_of_all(forecast)
                  : compiled.programs.memory.peak * static_cast<std::uint64_t>(std::max<std::int64_t>(ranks_here, 1)));
  if (limits.memory && needed > limits.memory->bytes) {
    throw Error(
        ErrorCode::job,
        fmt::format(
            "{}: {} needs {} ({} bytes){}{} and {}: make the model, [data] "
            "batch or context smaller, use more microbatches, or {}; 'shardrun plan' shows what "
            "takes it",
            job.file, ranks_here == 0 ? "one rank of the job" : "the job", metrics::human_bytes(needed), needed,
            ranks_here == job.ranks || ranks_here == 0
                ? ""
                : fmt::format(" for the {} on this machine", metrics::counted(ranks_here, "rank")),
            text == 0 ? "" : fmt::format(", {} of them for the tokens of its text,", metrics::human_bytes(text)),
            text_of(*limits.memory), limits.memory->name.empty() ? "free memory" : "raise that limit"));
  }
  if (const std::uint64_t arena = fullest_of(forecast); limits.addresses && arena > limits.addresses->bytes) {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: a rank needs {} ({} bytes) and {}: raise that limit (ulimit -v unlimited), or make the "
                    "model, [data] batch or context smaller",
                    job.file, metrics::human_bytes(arena), arena, text_of(*limits.addresses)));
  }
}

std::vector<std::string> notices_of(const job::Job& job, const compile::Compiled& compiled,
                                    const forecast::Forecast& forecast, std::int64_t ranks_here, const Limits& limits) {
  std::vector<std::string> notices;
  if (const std::optional<forecast::IdleRanks> idle = forecast::idle_ranks(job, compiled, forecast)) {
    notices.push_back(to_string(*idle));
  }
  const std::uint64_t text = bytes_of_text(compiled);
  if (const std::optional<forecast::MemoryFit> fit = forecast::memory_fit(job, forecast)) {
    const std::uint64_t available = limits.memory ? limits.memory->bytes : 0;
    std::ranges::move(forecast::memory_notices(*fit, available - std::min(available, text), ranks_here),
                      std::back_inserter(notices));
  }
  const std::uint64_t needed = forecast::bytes_of_all(forecast) + text;
  if (limits.slowing && ranks_here == job.ranks && needed > limits.slowing->bytes) {
    notices.push_back(fmt::format("the job needs {} and {} before it slows processes down: it may run very slowly",
                                  metrics::human_bytes(needed), text_of(*limits.slowing)));
  }
  return notices;
}

/// What the job reads, and the setting that names it.
std::vector<std::pair<std::string, std::filesystem::path>> inputs_of(const job::Job& job) {
  std::vector<std::pair<std::string, std::filesystem::path>> inputs;
  for (const std::filesystem::path& file : data::data_files(job.data)) {
    inputs.emplace_back("[data]", file);
  }
  // A run leaves the state that it goes on from.
  if (const std::filesystem::path from = checkpoint::saved_state_file(job); !metrics::has_name_of_state(from)) {
    inputs.emplace_back("[iterate] from", from);
  }
  std::error_code none;
  const std::filesystem::path& measured = job.cluster.measured;
  inputs.emplace_back("[cluster] measured",
                      std::filesystem::is_directory(measured, none) ? metrics::trace_path(measured) : measured);
  return inputs;
}

/// A run replaces files in its folder, and removes those of older runs: never files that the user brought.
void require_own_folder(const job::Job& job) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] output = {} {}", job.where("job", "output"),
                                            metrics::human_path(job.output), what));
  };
  std::error_code none;
  if (std::filesystem::equivalent(job.file, metrics::job_path(job.output), none)) {
    refuse("is the job file's own folder, where the run would overwrite it: choose another");
  }
  for (const auto& [setting, file] : inputs_of(job)) {
    if (!file.empty() && metrics::is_written_by_runs(file, job.output)) {
      refuse(
          fmt::format("has '{}', which {} names and which this run would replace or remove: choose another folder, "
                      "or move the file",
                      metrics::human_path(file), setting));
    }
  }
  const std::filesystem::path foreign = metrics::foreign_result(job.output, checkpoint::saved_state_file(job));
  if (!foreign.empty()) {
    refuse(
        fmt::format("has a {} which no run has written, and which runs there would overwrite or remove: choose "
                    "another folder, or move the file",
                    foreign.filename().string()));
  }
}

metrics::Summary run_here(const job::Job& job, compile::Compiled& compiled, const RunSettings& settings,
                          LocalDisplay& display) {
  const metrics::RunDirectory directory(job.output);
  if (const std::string older = directory.remove_older_run(checkpoint::kept_of(job)); !older.empty()) {
    display.line(older);
  }
  files::write_file_atomically(metrics::job_path(directory.root()), job::canonical_text(job));
  const job::Job held = job_in(directory, job);
  metrics::Summary summary;
  try {
    summary = work(held, compiled,
                   {.display = display,
                    .folder = directory.folder(),
                    .stop_signal = settings.stop_signal,
                    .profile = settings.profile},
                   summary);
  } catch (const Stopped& stopped) {  // between what is written before the first step and that
    summary = stopped_early(stopped.signal(), "before the first step");
  } catch (const Error& error) {
    if (!summary.status.empty()) {
      summary.error = error.message();
      write_last_summary(held, directory, settings, summary);
      join_traces(held);
    }
    throw;
  }
  write_last_summary(held, directory, settings, summary);
  join_traces(held);
  return summary;
}

}  // namespace

void write_last_summary(const job::Job& job, const metrics::RunDirectory& directory, const RunSettings& settings,
                        metrics::Summary& summary) noexcept {
  const auto fail = [&](const Error& error) {
    if (summary.error.empty()) {
      summary.status = "failed";
      summary.exit_code = exit_code(error.code());
      summary.error = error.message();
    }
  };
  summary.origin = settings.origin;
  summary.origin.ended = metrics::utc_text(std::chrono::system_clock::now());
  const bool trains = job.task == job::Task::train;
  summary.saved = to_string(directory.saved((trains ? metrics::weights_path({}) : metrics::state_path({})).filename()));
  try {
    directory.folder().require_owned();
  } catch (const Error& error) {
    fail(error);
  }
  if (!directory.folder().is_owned()) {
    return;
  }
  try {
    metrics::write_summary(metrics::summary_path(directory.root()), summary);
  } catch (const Error& error) {
    fail(error);
  }
}

job::Job job_in(const metrics::RunDirectory& directory, job::Job job) {
  job.output = directory.root();
  return job;
}

std::vector<std::string> require_runnable(const job::Job& job, const compile::Compiled& compiled,
                                          std::int64_t ranks_here) {
  require_own_folder(job);
  if (job.task == job::Task::train && job.train.precision == job::Precision::mixed) {
    throw Error(ErrorCode::job, fmt::format("{}: [train] precision = mixed is for 'shardrun plan': runs compute in "
                                            "float32; leave it out",
                                            job.where("train", "precision")));
  }
  const Limits limits;
  const forecast::Forecast forecast = forecast::forecast(job, compiled);
  require_memory(job, compiled, forecast, ranks_here, limits);
  if (job.task == job::Task::train && compiled.dataset == nullptr) {
    throw Error(ErrorCode::job,
                fmt::format("{}: training needs data: set [data] text, tokens or arrays", job.where("data", "")));
  }
  return notices_of(job, compiled, forecast, ranks_here, limits);
}

void require_memory_here(const job::Job& job, const compile::Compiled& compiled, std::int64_t ranks_here) {
  require_memory(job, compiled, forecast::forecast(job, compiled), ranks_here, {});
}

void show(const std::vector<std::string>& notices, metrics::Display& display) {
  for (const std::string& notice : notices) {
    display.line(notice);
  }
}

void check_data(const compile::Compiled& compiled) {
  if (compiled.dataset != nullptr) {
    compiled.dataset->check(static_cast<int>(device::usable_cores()));
  }
}

void load_data(const compile::Compiled& compiled) {
  if (compiled.dataset != nullptr) {
    compiled.dataset->load();
    static_cast<void>(compiled.dataset->fingerprints());  // by which a file that is renamed is known to be the same
  }
}

void require_launchable(const job::Job& job, const compile::Compiled& compiled) {
  for (const plugins::Transport& transport : compiled.transports.transports) {
    if (transport.props().own_launcher_only) {
      throw Error(
          ErrorCode::job,
          fmt::format("{}: transport {} works between ranks that a launcher of its own has started: put 'mpirun -n {}' "
                      "or 'srun -n {}' before this command, or choose another transport",
                      compile::place_of_transport(job, transport.manifest().name), transport.manifest().name, job.ranks,
                      job.ranks));
    }
  }
}

metrics::Summary stopped_early(int signal, std::string_view when) {
  metrics::Summary summary;
  summary.status = "stopped";
  summary.exit_code = 128 + signal;
  summary.error = fmt::format("stopped by SIG{} {}", sigabbrev_np(signal), when);
  return summary;
}

std::optional<metrics::Summary> stopped_before_start(const RunSettings& settings) {
  const int signal = settings.stop_signal ? settings.stop_signal() : 0;
  return signal == 0 ? std::nullopt : std::optional(stopped_early(signal, "before anything was started"));
}

namespace {

metrics::Summary prepare_and_run(const job::Job& job, const RunSettings& settings) {
  std::optional<LocalDisplay> display(std::in_place, job, settings);
  std::optional<compile::Compiled> compiled =
      compile::compile(job, "cpu", 0, [&](std::string_view activity) { display->now_at(activity); });
  if (const auto stopped = stopped_before_start(settings)) {
    return *stopped;
  }
  std::vector<std::string> notices = require_runnable(job, *compiled, job.ranks);
  std::ranges::move(forecast::require_disk(job, *compiled), std::back_inserter(notices));
  display->now_at("reading data");
  check_data(*compiled);
  load_data(*compiled);
  if (const auto stopped = stopped_before_start(settings)) {
    return *stopped;
  }
  if (job.ranks == 1) {
    show(notices, *display);
    return run_here(job, *compiled, settings, *display);
  }
  require_launchable(job, *compiled);
  show(notices, *display);
  const std::shared_ptr<data::Dataset> dataset = compiled->dataset;
  compiled.reset();  // the ranks do this again for themselves, with the same data
  display->hand_over();
  display.reset();
  return run_ranks(job, settings, dataset.get());
}

}  // namespace

metrics::Summary run(const job::Job& job, const RunSettings& settings) {
  try {
    return prepare_and_run(job, settings);
  } catch (const Stopped& stopped) {
    return stopped_early(stopped.signal(), "before anything was started");
  }
}

}  // namespace shardrun::train
