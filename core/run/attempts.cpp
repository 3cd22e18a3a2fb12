#include "core/run/launched.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/stop.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/saved_state.h"
#include "core/compile/compile.h"
#include "core/files/folder.h"
#include "core/run/prepare.h"
#include "core/train/steps.h"

namespace shardrun::run {

Attempts::Attempts(const job::Job& job, std::shared_ptr<const checkpoint::OpenCheckpoint> resumed)
    : job_(job), first_(std::move(resumed)), resumed_(first_) {}

std::int64_t Attempts::first_step() const {
  return resumed_ == nullptr ? checkpoint::first_step(job_) : resumed_->manifest().step;
}

bool Attempts::goes_on_after(const launch::LaunchResult& result, bool has_begun, const Tell& tell) {
  if (job_.restarts == 0 || !result.cause || result.stop_signal != 0) {
    return false;
  }
  try {
    return choose_another(result, has_begun, tell);
  } catch (const Stopped& stopped) {
    stop_signal_ = stopped.signal();
  } catch (const Error& error) {
    give_up(error.message());
  }
  return false;
}

bool Attempts::choose_another(const launch::LaunchResult& result, bool has_begun, const Tell& tell) {
  stop_point();
  set_aside_.clear();
  const launch::RootCause& cause = *result.cause;
  const bool is_of_checkpoint = cause.is_permanent && !has_begun && is_damaged(tell);
  if (cause.is_permanent && !is_of_checkpoint) {
    given_up_ = "the ranks are not started again, because this would happen again";
    return false;
  }
  if (is_of_checkpoint && is_named()) {
    given_up_ =
        "the ranks are not started again, because the checkpoint was named: name another one, or "
        "remove it and name the folder of its run";
    return false;
  }
  if (!is_of_checkpoint || without_progress_ < job_.restarts) {
    if (is_of_checkpoint) {
      set_damaged_aside();
    }
    choose_next(cause, has_begun);
  }
  const bool has_progressed = next_ != nullptr && (resumed_ == nullptr || next_->manifest().step > first_step());
  without_progress_ = has_progressed ? 1 : without_progress_ + 1;
  cause_ = cause;
  if (without_progress_ == 1) {
    first_cause_ = launch::describe(cause_);
  }
  blamed_ = is_of_checkpoint ? std::nullopt : std::optional(cause.rank);
  if (without_progress_ > job_.restarts) {
    given_up_ = fmt::format("given up after {} without a newer checkpoint; the first of these failures: {}",
                            counted(job_.restarts, "restart"), first_cause_);
    return false;
  }
  return true;
}

bool Attempts::is_named() const noexcept { return resumed_ == first_ && job_.checkpoints.resume != "auto"; }

/// Whether the attempt's checkpoint is damaged. Reads all its files.
bool Attempts::is_damaged(const Tell& tell) const {
  if (resumed_ == nullptr) {
    return false;
  }
  tell(fmt::format("checks the files of {}", files::human_path(files::shown(resumed_->path()))));
  const checkpoint::OpenCheckpoint opened(resumed_->path());  // opened again: an error on opening may be temporary
  return !is_sound(opened);
}

bool Attempts::is_sound(const checkpoint::OpenCheckpoint& opened) {
  try {
    opened.check_all_files();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) {
      throw;
    }
    return false;
  }
}

/// Sets aside the checkpoint and those before it that are damaged, too.
void Attempts::set_damaged_aside() {
  std::filesystem::path damaged = resumed_->path();
  while (!damaged.empty()) {
    set_aside_.push_back(files::human_path(files::shown(checkpoint::set_aside(damaged))));
    damaged = checkpoint::newest_checkpoint(checkpoint::checkpoint_folder(job_)).path;
    if (!damaged.empty() && is_sound(checkpoint::OpenCheckpoint(damaged))) {
      break;
    }
  }
  if (resumed_ == first_) {
    first_.reset();  // the checkpoints before it belong to the same run
  }
}

void Attempts::choose_next(const launch::RootCause& cause, bool has_begun) {
  const checkpoint::NewestCheckpoint newest = checkpoint::newest_checkpoint(checkpoint::checkpoint_folder(job_));
  unreadable_ = newest.damaged;
  if (newest.path.empty() || (first_ != nullptr && newest.step < first_->manifest().step)) {
    next_ = first_;  // the folder's newest checkpoint belongs to an earlier run
  } else {
    next_ = std::make_shared<const checkpoint::OpenCheckpoint>(newest.path);
  }
  if (next_ == nullptr) {
    checkpoint::require_readable(job_, newest);
  }
  next_job_ = job_;
  const bool is_blamed = set_aside_.empty() && (!has_begun || blamed_ == cause.rank);
  if (!job_.elastic_ranks || job_.ranks == job_.elastic_ranks->least) {
    return;
  }
  try {
    if (const std::int64_t most = is_blamed ? job_.ranks - 1 : compile::ranks_of_machine(job_); most < job_.ranks) {
      next_job_ = with_fitting_ranks(job_, most);
    }
  } catch (const Error&) {
    // Neither strategy nor mesh allow fewer ranks, or the device is no longer available.
  }
}

std::string Attempts::begin_next(Run& run, const std::filesystem::path& record, const metrics::Summary& failed) {
  const std::string cause = launch::describe(cause_);
  run.write_record(record, failed);
  failed_.push_back({.rank = cause_.rank,
                     .cause = cause,
                     .first_step = first_step(),
                     .steps = failed.steps,
                     .ranks = job_.ranks,
                     .seconds = failed.seconds});
  const bool has_other_ranks = next_job_.ranks != job_.ranks;
  resumed_ = std::exchange(next_, nullptr);
  job_ = next_job_;
  if (resumed_ != nullptr) {
    resumed_->release();
  }
  run.begin_again(job_, resumed_.get());
  const auto number = static_cast<std::int64_t>(failed_.size());
  return fmt::format(
      "attempt {} failed: {};{}{} attempt {} of {} {}{} (record of the failed one: {})", number,
      cause.substr(0, cause.find('\n')),
      set_aside_.empty() ? "" : fmt::format(" set aside as {};", fmt::join(set_aside_, ", ")),
      unreadable_.empty() ? "" : fmt::format(" passes by damaged checkpoints: {};", fmt::join(unreadable_, ", ")),
      number + 1, number + 1 + job_.restarts - without_progress_,
      first_step() == 0 ? "begins at the start" : fmt::format("goes on after step {}", first_step()),
      has_other_ranks ? fmt::format(" with {}", counted(job_.ranks, "rank")) : "", files::human_path(record));
}

void Attempts::conclude(metrics::Summary& summary) const {
  summary.attempts = failed_;
  if (stop_signal_ != 0) {
    const std::string failure = std::exchange(summary.error, "");
    summary.status = "stopped";
    summary.exit_code = train::exit_code_of_stop(job_, stop_signal_);
    summary.error = fmt::format("stopped by SIG{} before the ranks were started again, after this failure: {}",
                                sigabbrev_np(stop_signal_), failure);
  }
  if (!set_aside_.empty() && (!given_up_.empty() || stop_signal_ != 0)) {
    summary.error += fmt::format("\n  set aside as {}", fmt::join(set_aside_, ", "));
  }
  if (!given_up_.empty()) {
    summary.error += fmt::format("\n  {}", given_up_);
  }
}

}  // namespace shardrun::run
