#include "core/train/attempts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/saved_state.h"
#include "core/device/cores.h"
#include "core/files/folder.h"
#include "core/metrics/human.h"
#include "core/train/checkpointing.h"
#include "core/train/elastic.h"

namespace shardrun::train {

Attempts::Attempts(const job::Job& job, std::shared_ptr<const checkpoint::OpenCheckpoint> resumed)
    : job_(job), first_(std::move(resumed)), resumed_(first_) {}

std::int64_t Attempts::first_step() const {
  return resumed_ == nullptr ? checkpoint::first_step(job_) : resumed_->manifest().step;
}

bool Attempts::goes_on_after(const launch::LaunchResult& result, bool has_begun) {
  if (job_.restarts == 0 || !result.cause || stop_requested() != 0) {
    return false;
  }
  set_aside_.clear();
  try {
    if (result.cause->is_permanent && (has_begun || !set_damaged_aside())) {
      given_up_ = "the ranks are not started again, because this would happen again";
      return false;
    }
    choose_next(*result.cause, has_begun);
  } catch (const Stopped&) {  // while it compiled
    return false;
  } catch (const Error& error) {
    give_up(error.message());
    return false;
  }
  const bool has_progressed = next_ != nullptr && (resumed_ == nullptr || next_->manifest().step > first_step());
  without_progress_ = has_progressed ? 1 : without_progress_ + 1;
  cause_ = *result.cause;
  if (without_progress_ == 1) {
    first_cause_ = launch::describe(cause_);
  }
  if (without_progress_ > job_.restarts) {
    given_up_ = fmt::format("given up after {} without a newer checkpoint; the first of these failures: {}",
                            metrics::counted(job_.restarts, "restart"), first_cause_);
    return false;
  }
  return true;
}

bool Attempts::set_damaged_aside() {
  if (resumed_ == nullptr || (resumed_ == first_ && job_.checkpoints.resume != "auto")) {
    return false;  // a person has named it
  }
  const std::filesystem::path folder = checkpoint::checkpoint_folder(job_);
  std::filesystem::path newest = resumed_->path();
  for (;;) {
    try {
      checkpoint::OpenCheckpoint(newest).check_all_files();
      break;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::data) {
        throw;
      }
    }
    const std::filesystem::path aside = checkpoint::set_aside(newest);
    set_aside_.push_back(metrics::human_path(files::shown(aside)));
    newest = checkpoint::newest_checkpoint(folder).path;
    if (newest.empty()) {
      break;
    }
  }
  if (set_aside_.empty()) {
    return false;
  }
  if (resumed_ == first_) {  // those before it are of the same run
    if (newest.empty()) {
      throw Error(ErrorCode::data,
                  fmt::format("the checkpoint is damaged, was set aside as {}, and there is none before it; "
                              "without --resume the job begins at the start",
                              fmt::join(set_aside_, ", ")));
    }
    first_ = std::make_shared<const checkpoint::OpenCheckpoint>(newest);
  }
  return true;
}

void Attempts::choose_next(const launch::RootCause& cause, bool has_begun) {
  job::Job newest = job_;
  newest.checkpoints.resume = "auto";
  std::vector<std::string> damaged;  // the person has the line about the next attempt
  next_ = open_resumed(newest, damaged);
  if (next_ == nullptr || (first_ != nullptr && next_->manifest().step < first_->manifest().step)) {
    next_ = first_;  // what is in the folder is of an earlier run
  }
  next_job_ = job_;
  const bool is_same_rank = !failed_.empty() && failed_.back().rank == cause.rank;
  const std::int64_t most = has_begun && !is_same_rank ? device::usable_cores() : job_.ranks - 1;
  if (!job_.elastic_ranks || most >= job_.ranks || job_.ranks == job_.elastic_ranks->least) {
    return;
  }
  try {
    next_job_ = with_fitting_ranks(job_, most);
  } catch (const Error&) {
    // Neither strategy nor mesh allows fewer.
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
  return fmt::format("attempt {} failed: {};{} attempt {} of {} {}{} (record of the failed one: {})", number,
                     cause.substr(0, cause.find('\n')),
                     set_aside_.empty() ? "" : fmt::format(" set aside as {};", fmt::join(set_aside_, ", ")),
                     number + 1, number + 1 + job_.restarts - without_progress_,
                     first_step() == 0 ? "begins at the start" : fmt::format("goes on after step {}", first_step()),
                     has_other_ranks ? fmt::format(" with {}", metrics::counted(job_.ranks, "rank")) : "",
                     metrics::human_path(record));
}

void Attempts::conclude(metrics::Summary& summary) const {
  summary.attempts = failed_;
  if (!given_up_.empty()) {
    summary.error += fmt::format("\n  {}", given_up_);
  }
}

}  // namespace shardrun::train
