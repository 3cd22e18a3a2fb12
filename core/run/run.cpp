#include "core/run/run.h"

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/saved_state.h"
#include "core/files/atomic_file.h"
#include "core/metrics/log.h"
#include "core/run/earlier_run.h"
#include "core/train/steps.h"
#include "core/train/tracer.h"

namespace shardrun::run {
namespace {

job::Job with_output(job::Job job, std::filesystem::path output) {
  job.output = std::move(output);
  return job;
}

}  // namespace

Run::Run(const job::Job& job, const RunSettings& settings)
    : settings_(settings),
      locked_folder_(settings.output.empty() ? job.output : settings.output),
      job_(with_output(job, locked_folder_.root())) {}

void Run::replace_checkpoints() {
  const std::filesystem::path folder = checkpoint::replaced_checkpoints(job_);
  std::error_code none;
  if (folder.empty() || job_.task == job::Task::infer || !std::filesystem::is_directory(folder, none)) {
    return;
  }
  if (!checkpoints_) {
    checkpoints_.emplace(checkpoint::lock_checkpoints(folder));
  }
  checkpoint::remove_checkpoints(folder);
}

std::string Run::begin(const checkpoint::OpenCheckpoint* resumed) {
  if (job_.checkpoints.used) {
    checkpoints_.emplace(checkpoint::lock_checkpoints(checkpoint::checkpoint_folder(job_)));
  }
  if (settings_.replaces && resumed == nullptr) {
    replace_checkpoints();
  }
  if (job_.checkpoints.used) {
    checkpoint::require_newest(job_,
                               resumed == nullptr ? 0 : resumed->manifest().step);  // another run may have saved
    checkpoint::remove_unfinished_checkpoints(checkpoint::checkpoint_folder(job_));
  }
  metrics::Kept kept = checkpoint::kept_of(job_, resumed);
  kept.results = !settings_.replaces;
  std::string older = locked_folder_.remove_older_run(kept);
  write_job();
  return older;
}

void Run::write_job() const {
  files::write_file_atomically(metrics::job_path(locked_folder_.root()),
                               text_of_run(with_output(job_, locked_folder_.path())));
}

void Run::begin_again(const job::Job& job, const checkpoint::OpenCheckpoint* resumed) {
  locked_folder_.folder().require_owned();
  job_ = with_output(job, locked_folder_.root());
  checkpoint::remove_unfinished_checkpoints(checkpoint::checkpoint_folder(job_));
  locked_folder_.remove_files(checkpoint::kept_of(job_, resumed));
  write_job();
}

std::filesystem::path Run::keep_record() const {
  locked_folder_.folder().require_owned();
  const std::filesystem::path& root = locked_folder_.root();
  std::error_code failed;
  std::filesystem::path folder;
  for (int number = 1; folder.empty() || std::filesystem::exists(folder, failed); ++number) {
    folder = metrics::attempts_path(root) / std::to_string(number);
  }
  files::create_folders(folder, "the record of an attempt");
  for (const char* const part : {"log", "flight"}) {
    if (std::filesystem::exists(root / part, failed)) {
      std::filesystem::rename(root / part, folder / part, failed);
      if (failed) {
        throw files::system_error("move", root / part, failed.value());
      }
    }
  }
  return folder;
}

void Run::complete(metrics::Summary& summary) const {
  summary.origin = settings_.origin;
  summary.origin.ended = metrics::utc_text(std::chrono::system_clock::now());
  summary.saved = to_string(locked_folder_.saved(checkpoint::result_path(job_).filename()));
}

void Run::write_record(const std::filesystem::path& folder, metrics::Summary summary) const {
  complete(summary);
  metrics::write_summary(metrics::summary_path(folder), summary);
}

void Run::write_summary(metrics::Summary& summary) noexcept {
  const auto fail = [&](const Error& error) {
    if (summary.error.empty()) {
      summary.status = "failed";
      summary.exit_code = exit_code(error.code());
      summary.error = error.message();
    }
  };
  complete(summary);
  try {
    locked_folder_.folder().require_owned();
  } catch (const Error& error) {
    fail(error);
  }
  if (!locked_folder_.folder().is_owned()) {
    return;
  }
  try {
    metrics::write_summary(metrics::summary_path(locked_folder_.root()), summary);
    if (summary.status == "finished" && summary.saved == to_string(metrics::Saved::fresh)) {
      locked_folder_.remove_earlier_run();
    }
  } catch (const Error& error) {
    fail(error);
  }
}

void Run::end(metrics::Summary& summary) {
  write_summary(summary);
  train::join_traces(job_);
}

metrics::Summary stopped_early(const job::Job& job, int signal, std::string_view when) {
  metrics::Summary summary;
  summary.status = "stopped";
  summary.exit_code = train::exit_code_of_stop(job, signal);
  summary.error = fmt::format("stopped by SIG{} {}", sigabbrev_np(signal), when);
  return summary;
}

std::optional<metrics::Summary> stopped_before_start(const job::Job& job, const RunSettings& settings) {
  const int signal = settings.stop_signal ? settings.stop_signal() : 0;
  return signal == 0 ? std::nullopt : std::optional(stopped_early(job, signal, "before anything was started"));
}

}  // namespace shardrun::run
