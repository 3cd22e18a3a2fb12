#include "core/run/run.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/compile/compile.h"
#include "core/run/launched.h"
#include "core/run/local_display.h"
#include "core/run/prepare.h"
#include "core/run/rank_process.h"
#include "core/run/requirements.h"
#include "core/run/resuming.h"
#include "core/run/served_numbers.h"
#include "core/train/steps.h"

namespace shardrun::run {
namespace {

/// Runs a job of one rank in this process.
metrics::Summary run_here(const job::Job& job, compile::Compiled& compiled, const RunSettings& settings,
                          LocalDisplay& display) {
  use_unit(job, *compiled.device, 0, 1);
  Run run(job, settings);
  if (const std::string older = run.begin(compiled.resumed.get()); !older.empty()) {
    display.line(older);
  }
  train::RankLink link(run.job(), compiled, nullptr, settings.stop_signal);
  metrics::Summary summary;
  try {
    summary = train::run_steps(run.job(), compiled,
                               {.display = display,
                                .folder = run.locked_folder().folder(),
                                .link = link,
                                .profile = settings.profile,
                                .ends_by = settings.ends_by},
                               summary);
  } catch (const Stopped& stopped) {  // asked to stop after the preparation, before the first step
    summary = stopped_early(job, stopped.signal(), "before the first step");
  } catch (const Error& error) {
    if (!summary.status.empty()) {
      summary.error = error.message();
      run.end(summary);
    }
    throw;
  }
  run.end(summary);
  return summary;
}

metrics::Summary prepare_and_run(const job::Job& given, RunSettings settings) {
  const job::Job job = with_fitting_ranks(given, given.ranks);
  std::optional<LocalDisplay> display(std::in_place, job, settings);
  std::optional<Prepared> prepared =
      prepare(job, {.ranks_here = job.ranks,
                    .processes = runs_here(job) ? 0 : job.ranks,
                    .replaces = settings.replaces,
                    .replaces_file = settings.replaces_file,
                    .now_at = [&](std::string_view activity) { display->now_at(activity); }});
  if (const auto stopped = stopped_before_start(job, settings)) {
    return *stopped;
  }
  display->now_at("reading data");
  prepare_data(job, *prepared);
  compile::Compiled& compiled = prepared->compiled;
  if (has_nothing_left(job, compiled)) {
    display->line(fmt::format("the newest checkpoint is of the last step, {}, and the results are there",
                              compiled.resumed->manifest().step));
    return {.status = "finished", .first_step = compiled.resumed->manifest().step};
  }
  if (const auto stopped = stopped_before_start(job, settings)) {
    return *stopped;
  }
  for (const std::string& notice : prepared->notices) {
    display->line(notice);
  }
  const ServedNumbers served(job, settings);
  settings.numbers = served.numbers();
  if (const std::string notice = served.notice(); !notice.empty()) {
    display->line(notice);
  }
  if (runs_here(job)) {
    return run_here(job, compiled, settings, *display);
  }
  const std::shared_ptr<data::Dataset> dataset = compiled.dataset;
  const std::shared_ptr<const checkpoint::OpenCheckpoint> resumed = compiled.resumed;
  if (resumed != nullptr) {
    resumed->release();
  }
  std::vector<std::string> words = {fmt::format("--{}", slots_option), fmt::format("{}", compiled.slots)};
  if (const std::string declared = declared_in(compiled); !declared.empty()) {
    words.insert(words.end(), {fmt::format("--{}", declared_option), declared});
  }
  prepared.reset();  // the ranks compile the job for themselves, with the same data
  display->hand_over();
  display.reset();
  return run_ranks(job, settings, dataset.get(), resumed, std::move(words));
}

}  // namespace

metrics::Summary run_job(const job::Job& job, const RunSettings& settings) {
  try {
    return prepare_and_run(job, settings);
  } catch (const Stopped& stopped) {
    return stopped_early(job, stopped.signal(), "before anything was started");
  }
}

}  // namespace shardrun::run
