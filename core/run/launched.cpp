#include "core/run/launched.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/base/utf8.h"
#include "core/compile/compile.h"
#include "core/files/descriptor.h"
#include "core/launch/launch.h"
#include "core/launch/process.h"
#include "core/metrics/locked_run_folder.h"
#include "core/run/rank_process.h"
#include "core/run/rank_reports.h"
#include "plugins/loader/guard.h"

namespace shardrun::run {
namespace {

/// Raises the limit of descriptors, or throws. Called before anything is created. Each rank also has a log.
void require_descriptors(const job::Job& job) {
  const std::uint64_t needed =
      static_cast<std::uint64_t>(job.ranks) * (launch::descriptors_per_rank + 1) + launch::other_descriptors;
  if (const std::uint64_t allowed = launch::raise_descriptor_limit(needed); allowed != 0) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] ranks = {} needs {} open files in the process that starts them, "
                                            "and it may have {}: use fewer ranks, or raise the limit (ulimit -n)",
                                            job.where("job", "ranks"), job.ranks, needed, allowed));
  }
}

/// The time limit from the start of a rank to its hello. In this time it loads plugins, each of which may take as long
/// as call_limit(), even if the job's timeout is short. The upper limit is for jobs with timeouts of hours: no healthy
/// rank takes minutes to start.
std::chrono::milliseconds join_timeout_of(const job::Job& job) {
  constexpr std::chrono::milliseconds shortest{5000};
  constexpr std::chrono::milliseconds longest{300'000};
  const std::chrono::milliseconds least = std::max(plugins::call_limit(), shortest);
  return std::clamp(silence_of(job), least, std::max(least, longest));
}

/// Copies of standard input and output for the ranks to inherit. The ranks' own are pipes to the launcher.
class InheritedStandard {
 public:
  InheritedStandard() : input_(copy(STDIN_FILENO)), output_(copy(STDOUT_FILENO)) {}

  [[nodiscard]] std::string text() const { return fmt::format("{},{}", input_.get(), output_.get()); }

 private:
  static files::FileDescriptor copy(int descriptor) {
    constexpr int lowest = 16;  // a started process needs the descriptors below this for itself
    return files::FileDescriptor(::fcntl(descriptor, F_DUPFD, lowest));
  }

  files::FileDescriptor input_;
  files::FileDescriptor output_;
};

std::vector<std::string> with_checkpoint(std::vector<std::string> words, const checkpoint::OpenCheckpoint* resumed) {
  if (resumed != nullptr) {
    words.insert(words.end(), {fmt::format("--{}", resume_option), resumed->path().string()});
  }
  return words;
}

/// Writes an event for a program that reads events. Without it, the program would wait until all ranks have ended.
void tell_failure(const job::Job& job, const launch::RootCause& cause) {
  if (job.infer.events && job::is_standard(job.infer.to)) {
    // The event is so short that it is written in one piece, between what the first rank writes. The line break ends an
    // event that the first rank has not written whole. A program that does not read gets no event.
    constexpr std::size_t most_bytes = 500;
    const boost::json::object event = {{"failed", with_replacements(launch::describe(cause).substr(0, most_bytes))}};
    const std::string line = "\n" + boost::json::serialize(event) + "\n";
    pollfd reader = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    if (::poll(&reader, 1, 0) == 1) {
      [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, line.data(), line.size());
    }
  }
}

launch::LaunchResult launch_ranks(const job::Job& job, const RunSettings& settings,
                                  const metrics::LockedRunFolder& folder, const std::vector<std::string>& words,
                                  RankReports& reports) {
  // The output path is only for people. A rank opens the folder through the launcher's descriptor, whatever is at the
  // path by then.
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
                         .on_failure = [&](const launch::RootCause& cause) { tell_failure(job, cause); },
                         .on_output = [&](const launch::OutputLine& line) { reports.show(line); },
                         .on_message = [&](const launch::RankMessage& message) { reports.take(message); },
                         .on_log = [&](std::string_view line) { reports.log(line); },
                         .on_notice = [&](std::string_view line) { reports.notice(line); }});
}

/// Runs one attempt after the other, until none follows.
class LaunchedRun {
 public:
  LaunchedRun(const job::Job& job, const RunSettings& settings, std::vector<std::string> words,
              std::shared_ptr<const checkpoint::OpenCheckpoint> resumed)
      : settings_(settings),
        words_(std::move(words)),
        run_(job, settings),
        attempts_(job, std::move(resumed)),
        told_(run_.begin(attempts_.resumed())) {}

  metrics::Summary run() {
    for (;;) {
      if (const std::optional<metrics::Summary> summary = attempt()) {
        return *summary;
      }
    }
  }

 private:
  /// Starts the ranks and waits for their end. Returns the run's summary, or nothing if another attempt must follow.
  std::optional<metrics::Summary> attempt() {
    const job::Job job = run_.job();  // a copy, because the next attempt's job may differ
    RankReports reports(job, settings_, static_cast<int>(job.ranks), attempts_.first_step());
    reports.tell_older(told_);
    std::optional<metrics::Summary> failed;
    metrics::Summary summary;
    bool is_last = true;
    {
      const metrics::Leftovers leftovers(run_.locked_folder());
      const launch::LaunchResult result = launch_ranks(attempts_.job(), settings_, run_.locked_folder(),
                                                       with_checkpoint(words_, attempts_.resumed()), reports);
      if (result.stop_signal != 0) {
        request_stop(result.stop_signal);  // while the ranks ran, this process did not handle signals itself
      }
      if (attempts_.goes_on_after(result, reports.has_begun(), [&](std::string_view line) { reports.notice(line); })) {
        try {
          const std::filesystem::path record = run_.keep_record();
          failed = reports.merge(result, record);
          told_ = attempts_.begin_next(run_, record, *failed);
          if (settings_.numbers != nullptr) {
            settings_.numbers->begin_again(attempts_.job().ranks);
          }
          is_last = false;
        } catch (const Error& error) {
          attempts_.give_up(error.message());
        }
      }
      summary = failed ? *failed : reports.merge(result, job.output);
    }
    if (is_last) {
      attempts_.conclude(summary);
      run_.end(summary);
    }
    reports.finish_screen(summary);
    return is_last ? std::optional(summary) : std::nullopt;
  }

  const RunSettings& settings_;
  const std::vector<std::string> words_;
  Run run_;
  Attempts attempts_;
  std::string told_;  ///< the first line of the next attempt, for the person
};

}  // namespace

metrics::Summary run_ranks(const job::Job& job, const RunSettings& settings, const data::Dataset* dataset,
                           std::shared_ptr<const checkpoint::OpenCheckpoint> resumed, std::vector<std::string> words) {
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
  if (settings.ends_by) {
    const double seconds = std::chrono::duration<double>(settings.ends_by->time_since_epoch()).count();
    words.insert(words.end(), {fmt::format("--{}", ends_by_option), fmt::format("{:.3f}", seconds)});
  }
  return LaunchedRun(job, settings, std::move(words), std::move(resumed)).run();
}

}  // namespace shardrun::run
