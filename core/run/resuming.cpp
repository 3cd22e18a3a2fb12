#include "core/run/resuming.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/resume.h"
#include "core/checkpoint/saved_state.h"
#include "core/files/folder.h"
#include "core/forecast/disk.h"
#include "core/job/output.h"
#include "core/metrics/summary.h"
#include "core/run/earlier_run.h"
#include "core/run/requirements.h"

namespace shardrun::run {
namespace {

[[noreturn]] void refuse(const job::Job& job, const std::string& what) {
  throw Error(ErrorCode::job, fmt::format("{}: [checkpoint] resume: {}", job.where("checkpoint", "resume"), what));
}

/// Whether the last run in the folder completed. A run that was stopped after the last step may lack its sample.
bool has_finished(const std::filesystem::path& output) {
  return metrics::text_in_summary(output, "status") == "finished";
}

}  // namespace

std::shared_ptr<const checkpoint::OpenCheckpoint> open_resumed(const job::Job& job, std::vector<std::string>& notices,
                                                               bool replaces) {
  const std::filesystem::path path =
      job.checkpoints.used ? checkpoint::checkpoint_to_resume(job, notices) : std::filesystem::path();
  if (path.empty()) {
    if (!job.weights.empty() && !std::filesystem::exists(job.weights)) {
      throw Error(ErrorCode::job, fmt::format("{}: [model] from: '{}' does not exist, and there is no checkpoint from "
                                              "which the run could go on without it",
                                              job.where("model", "from"), job.weights.native()));
    }
    if (!replaces || checkpoint::replaced_checkpoints(job).empty()) {
      checkpoint::require_newest(job, 0);
    }
    std::error_code none;
    const bool is_to_go_on = job.checkpoints.used && job.checkpoints.resume == "auto";
    if (is_to_go_on && !replaces && checkpoint::kept_of(job).step < 0 &&
        (has_finished(job.output) || std::filesystem::exists(checkpoint::result_path(job), none))) {
      refuse(job,
             fmt::format("'{}' has no checkpoint to go on from, and '{}' has the results of a run, which a run "
                         "from the start would replace: choose another [job] output, or accept that with --replace",
                         files::shown(checkpoint::checkpoint_folder(job)).native(), files::shown(job.output).native()));
    }
    return nullptr;
  }
  auto opened = std::make_shared<const checkpoint::OpenCheckpoint>(path);
  checkpoint::require_newest(job, opened->manifest().step);
  return opened;
}

void begin_from(std::shared_ptr<const checkpoint::OpenCheckpoint> resumed, compile::Compiled& compiled) {
  compiled.resumed = std::move(resumed);
  if (compiled.resumed != nullptr) {
    compiled.saved_state.steps = compiled.resumed->manifest().base;  // [iterate] from may have another state by now
  }
}

bool has_nothing_left(const job::Job& job, const compile::Compiled& compiled) {
  if (compiled.resumed == nullptr) {
    return false;
  }
  const checkpoint::Manifest& manifest = compiled.resumed->manifest();
  std::error_code none;
  return manifest.step == compiled.saved_state.steps + job::steps_of(job) && manifest.evaluated &&
         std::filesystem::equivalent(compiled.resumed->path().parent_path(), checkpoint::checkpoint_folder(job),
                                     none) &&
         std::filesystem::exists(checkpoint::result_path(job), none) && has_finished(job.output);
}

std::vector<std::string> check_resumed(const job::Job& job, const compile::Compiled& compiled) {
  if (compiled.resumed == nullptr) {
    return {};
  }
  const checkpoint::OpenCheckpoint& opened = *compiled.resumed;
  const std::string path = files::shown(opened.path()).native();
  const checkpoint::RunIdentity run = compile::identity_of(job, compiled);
  std::vector<std::string> notices =
      compiled.engine != nullptr
          ? checkpoint::check_resumed(job, opened, run, compile::held_tensors(*compiled.engine, compiled.graph))
          : checkpoint::check_resumed(job, opened, run, compiled.graph, compiled.partition);
  const std::int64_t step = opened.manifest().step;
  if (const std::int64_t last = compiled.saved_state.steps + job::steps_of(job); step > last) {
    refuse(job, fmt::format("'{}' is of step {}, and the job ends after {}: choose more steps", path, step, last));
  }
  return notices;
}

std::string told_of_resumed(const compile::Compiled& compiled) {
  return fmt::format("goes on after step {} from {}", compiled.resumed->manifest().step,
                     files::shown(compiled.resumed->path()).native());
}

Beginning beginning_of(const job::Job& job, compile::Compiled& compiled) {
  Beginning beginning;
  beginning.kind = job.checkpoints.used ? Beginning::Kind::at_start : Beginning::Kind::unsaved;
  try {
    job::require_own_checkpoints(job);
    begin_from(open_resumed(job, beginning.notices), compiled);
    require_same_job(job, compiled);
    if (job.checkpoints.used) {
      std::ranges::move(forecast::require_checkpoint_folder(job), std::back_inserter(beginning.notices));
    }
    if (compiled.resumed == nullptr) {
      return beginning;
    }
    beginning.step = compiled.resumed->manifest().step;
    beginning.checkpoint = files::shown(compiled.resumed->path());
    load_data(compiled);
    std::ranges::move(check_resumed(job, compiled), std::back_inserter(beginning.notices));
    beginning.kind = has_nothing_left(job, compiled) ? Beginning::Kind::has_ended : Beginning::Kind::resumed;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::job && error.code() != ErrorCode::data) {
      throw;
    }
    beginning.kind = Beginning::Kind::is_refused;
    beginning.refusal = error.message();
    beginning.notices.clear();
  }
  return beginning;
}

std::string to_string(const Beginning& beginning) {
  std::string text;
  switch (beginning.kind) {
    case Beginning::Kind::unsaved: return "";
    case Beginning::Kind::at_start: text = "a run would begin at the start\n"; break;
    case Beginning::Kind::resumed:
      text = fmt::format("a run would go on after step {} from {}\n", beginning.step,
                         files::human_path(beginning.checkpoint));
      break;
    case Beginning::Kind::has_ended:
      text = fmt::format("a run would do nothing: {} is of the last step, {}, and the results are there\n",
                         files::human_path(beginning.checkpoint), beginning.step);
      break;
    case Beginning::Kind::is_refused: text = fmt::format("a run would be refused: {}\n", beginning.refusal); break;
  }
  for (const std::string& notice : beginning.notices) {
    text += "  " + notice + "\n";
  }
  return text;
}

}  // namespace shardrun::run
