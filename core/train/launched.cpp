#include "core/train/launched.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/saved_state.h"
#include "core/compile/compile.h"
#include "core/files/descriptor.h"
#include "core/launch/launch.h"
#include "core/launch/limits.h"
#include "core/metrics/locked_run_folder.h"
#include "core/train/rank_process.h"
#include "core/train/rank_reports.h"
#include "plugins/loader/guard.h"

namespace shardrun::train {
namespace {

/// Called before anything is created. Each rank also has a log.
void require_descriptors(const job::Job& job) {
  const std::uint64_t needed =
      static_cast<std::uint64_t>(job.ranks) * (launch::descriptors_per_rank + 1) + launch::other_descriptors;
  if (const std::uint64_t allowed = launch::raise_descriptor_limit(needed); allowed != 0) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] ranks = {} needs {} open files in the process that starts them, "
                                            "and it may have {}: use fewer ranks, or raise the limit (ulimit -n)",
                                            job.where("job", "ranks"), job.ranks, needed, allowed));
  }
}

/// From the start of a rank to its hello. Before that it loads the plugins, each of which may take as long as
/// call_limit(), however short the job's timeout. The upper limit is for jobs whose timeout is hours: no healthy rank
/// takes minutes to start.
std::chrono::milliseconds join_timeout_of(const job::Job& job) {
  constexpr std::chrono::milliseconds shortest{5000};
  constexpr std::chrono::milliseconds longest{300'000};
  const std::chrono::milliseconds least = std::max(plugins::call_limit(), shortest);
  return std::clamp(silence_of(job), least, std::max(least, longest));
}

/// Copies of standard input and output, which the ranks inherit: their own are the launcher's.
class InheritedStandard {
 public:
  InheritedStandard() : input_(copy(STDIN_FILENO)), output_(copy(STDOUT_FILENO)) {}

  [[nodiscard]] std::string text() const { return fmt::format("{},{}", input_.get(), output_.get()); }

 private:
  static files::FileDescriptor copy(int descriptor) {
    constexpr int lowest = 16;  // what a process that is started has for itself lies below
    return files::FileDescriptor(::fcntl(descriptor, F_DUPFD, lowest));
  }

  files::FileDescriptor input_;
  files::FileDescriptor output_;
};

launch::LaunchResult launch_ranks(const job::Job& job, const RunSettings& settings,
                                  const metrics::LockedRunFolder& folder, const std::vector<std::string>& words,
                                  RankReports& reports) {
  // The path is for people. A rank opens the folder through the launcher's descriptor, whatever is at the path by then.
  std::vector<std::string> arguments = {"shardrun", "rank", metrics::job_path(job.output).string(), "--folder",
                                        fmt::format("/proc/{}/fd/{}", ::getpid(), folder.descriptor())};
  arguments.insert(arguments.end(), words.begin(), words.end());
  if (settings.profile) {
    arguments.emplace_back("--profile");
  }
  return launch::launch({.arguments = std::move(arguments),
                         .ranks = static_cast<int>(job.ranks),
                         .threads_per_rank = compile::threads_of(job),
                         .job = job::canonical_text(job),
                         .heartbeat_timeout = silence_of(job),
                         .join_timeout = join_timeout_of(job),
                         .has_begun = [&] { return reports.has_begun(); },
                         .on_output = [&](const launch::OutputLine& line) { reports.show(line); },
                         .on_message = [&](const launch::RankMessage& message) { reports.take(message); },
                         .on_log = [&](std::string_view line) { reports.log(line); },
                         .on_notice = [&](std::string_view line) { reports.notice(line); }});
}

}  // namespace

metrics::Summary run_ranks(const job::Job& job, const RunSettings& settings, const data::Dataset* dataset,
                           const checkpoint::OpenCheckpoint* resumed, std::vector<std::string> words) {
  require_descriptors(job);
  std::optional<data::InheritedData> inherited;
  if (dataset != nullptr) {
    inherited.emplace(*dataset);
    words.insert(words.end(),
                 {fmt::format("--{}", data_option), fmt::format("{}", fmt::join(inherited->handles(), ","))});
  }
  std::optional<InheritedStandard> standard;
  if (job.task == job::Task::infer) {
    standard.emplace();
    words.insert(words.end(), {fmt::format("--{}", standard_option), standard->text()});
  }
  if (resumed != nullptr) {
    words.insert(words.end(), {fmt::format("--{}", resume_option), resumed->path().string()});
  }
  if (settings.ends_by) {
    const double seconds = std::chrono::duration<double>(settings.ends_by->time_since_epoch()).count();
    words.insert(words.end(), {fmt::format("--{}", ends_by_option), fmt::format("{:.3f}", seconds)});
  }
  Run run(job, settings);
  const std::string older = run.begin(resumed);
  RankReports reports(run.job(), settings, static_cast<int>(job.ranks),
                      resumed == nullptr ? checkpoint::first_step(job) : resumed->manifest().step);
  reports.tell_older(older);
  metrics::Summary summary;
  {
    const metrics::Leftovers leftovers(run.locked_folder());
    const launch::LaunchResult result = launch_ranks(job, settings, run.locked_folder(), words, reports);
    if (result.stop_signal != 0) {
      request_stop(result.stop_signal);  // while the ranks ran, this process did not take signals itself
    }
    summary = reports.merge(result);
  }
  run.end(summary);
  reports.finish_screen(summary);
  return summary;
}

}  // namespace shardrun::train
