#include "core/task/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/base/philox.h"
#include "core/files/atomic_file.h"
#include "core/launch/launch.h"
#include "core/launch/limits.h"
#include "core/metrics/rundir.h"
#include "core/metrics/screen.h"
#include "core/task/compile.h"
#include "core/task/rank_link.h"
#include "core/task/record.h"
#include "core/task/trace.h"
#include "core/task/work.h"

namespace shardrun::task {
namespace {

// What ranks tell the launcher, by the kind of message.
constexpr const char* progress_message = "progress";
constexpr const char* finish_message = "finish";
constexpr const char* result_message = "result";
constexpr const char* summary_message = "summary";

std::uint64_t hash_of(const job::Job& job) { return hash_name(job::canonical_text(job)); }

std::string to_text(const metrics::ProgressUpdate& update) {
  const double none = std::nan("");
  return fmt::format("{} {} {} {}", update.step, update.loss.value_or(none), update.val_loss.value_or(none),
                     update.rate);
}

metrics::ProgressUpdate update_of(std::string_view text) {
  std::array<double, 4> numbers = {};
  const char* at = text.data();
  for (double& number : numbers) {
    at = std::from_chars(at, text.data() + text.size(), number).ptr;
    at += at < text.data() + text.size() ? 1 : 0;
  }
  const auto some = [](double number) { return std::isnan(number) ? std::nullopt : std::optional(number); };
  return {.step = static_cast<std::int64_t>(numbers[0]),
          .loss = some(numbers[1]),
          .val_loss = some(numbers[2]),
          .rate = numbers[3]};
}

/// Shows what the first rank does, on the launcher's screen.
class RemoteDisplay final : public Display {
 public:
  explicit RemoteDisplay(RankLink& link) : link_(link) {}

  void update(const metrics::ProgressUpdate& update) override { link_.message(progress_message, to_text(update)); }
  void line(std::string_view text) override { link_.message(line_message, text); }
  void finish() override { link_.message(finish_message, ""); }
  void result(std::string_view text) override {
    for (std::size_t at = 0; at < text.size(); at += piece_bytes) {
      link_.message(result_message, text.substr(at, piece_bytes));
    }
  }

 private:
  /// A sample may be longer than a message.
  static constexpr std::size_t piece_bytes = std::size_t{256} * 1024;

  RankLink& link_;
};

bool is_consequence(ErrorCode code) noexcept {
  return code == ErrorCode::aborted || code == ErrorCode::peer_lost || code == ErrorCode::timeout;
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// Bytes that a screen may be late with before updates are left out, and before what ranks print is.
constexpr std::size_t most_waiting_updates = std::size_t{64} * 1024;
constexpr std::size_t most_waiting_output = std::size_t{1024} * 1024;

/// The launcher's side of a running job.
class Ranks {
 public:
  Ranks(const job::Job& job, const RunSettings& settings)
      : job_(job),
        settings_(settings),
        screen_(settings.progress.write),
        progress_(sink(), job.task == job::Task::train ? job.train.steps : job.iterate.steps,
                  job.task == job::Task::train ? job.train.log_every : 0, job.task == job::Task::train ? "tok" : "it") {
    for (int rank = 0; rank < static_cast<int>(job.ranks); ++rank) {
      logs_.push_back(std::make_unique<metrics::Log>(metrics::log_path(job.output, rank)));
    }
  }

  metrics::Summary run(const std::filesystem::path& job_file, const std::vector<std::string>& words) {
    std::vector<std::string> arguments = {"shardrun", "rank", job_file.string()};
    arguments.insert(arguments.end(), words.begin(), words.end());
    if (settings_.profile) {
      arguments.emplace_back("--profile");
    }
    const launch::LaunchResult result =
        launch::launch({.arguments = std::move(arguments),
                        .ranks = static_cast<int>(job_.ranks),
                        .threads_per_rank = threads_of(job_),
                        .job_hash = hash_of(job_),
                        .heartbeat_timeout = milliseconds_of(job_.timeout),
                        .on_output = [this](const launch::OutputLine& line) { show(line); },
                        .on_message = [this](const launch::RankMessage& message) { take(message); },
                        .on_log = [this](std::string_view line) { logs_[0]->write(line); },
                        .on_notice = [this](std::string_view line) { progress_.print(line); }});
    return merge(result);
  }

  /// Waits until all is on the screen; where it was stopped, for as long as nothing went wrong and nobody asks to stop.
  void finish_screen(const metrics::Summary& summary) {
    const bool is_whole = summary.status == "finished";
    const bool shown =
        screen_.finish([&] { return is_whole && !(settings_.stop_signal && settings_.stop_signal() != 0); });
    if (shown && !results_.empty()) {
      settings_.print(results_);
    }
  }

 private:
  /// Updates are left out where the screen is slow.
  [[nodiscard]] metrics::ProgressSink sink() {
    metrics::ProgressSink sink = settings_.progress;
    sink.write = [this](std::string_view text) { screen_.write(text); };
    sink.is_behind = [this] { return screen_.waiting_bytes() > most_waiting_updates; };
    return sink;
  }

  void show(const launch::OutputLine& line) {
    logs_[static_cast<std::size_t>(line.rank)]->write(line.text);
    if (screen_.waiting_bytes() > most_waiting_output) {
      ++unshown_;
      return;
    }
    if (unshown_ > 0) {
      progress_.print(fmt::format("({} lines of ranks are in their logs alone: they were more than the screen took)",
                                  std::exchange(unshown_, 0)));
    }
    progress_.print(fmt::format("[{}] {}", line.rank, line.text));
  }

  void take(const launch::RankMessage& message) {
    if (message.kind == progress_message) {
      note(update_of(message.bytes));
    } else if (message.kind == line_message) {
      progress_.print(message.bytes);
    } else if (message.kind == finish_message) {
      progress_.finish();
    } else if (message.kind == result_message) {
      results_ += message.bytes;
    } else if (message.kind == summary_message) {
      summaries_[message.rank] = metrics::parse_summary(message.bytes);
    }
  }

  void note(const metrics::ProgressUpdate& update) {
    const std::optional<double> val_loss = update.val_loss ? update.val_loss : last_.val_loss;
    last_ = update;
    last_.val_loss = val_loss;
    progress_.update(update);
  }

  /// What the first rank would have said of the run, had it come to its end.
  void fill(metrics::Summary& summary) const {
    summary.steps = last_.step;
    summary.loss = last_.loss;
    summary.val_loss = last_.val_loss;
    summary.tokens_per_s = job_.task == job::Task::train ? last_.rate : 0;
    summary.seconds = seconds_since(begin_);
  }

  /// The first rank's summary with every rank's part. That of a rank that died has what was planned, where it came so
  /// far.
  metrics::Summary merge(const launch::LaunchResult& result) {
    metrics::Summary summary = summaries_.contains(0) ? summaries_[0] : metrics::Summary{};
    summary.ranks.clear();
    for (int rank = 0; rank < static_cast<int>(job_.ranks); ++rank) {
      summary.ranks.push_back(summaries_.contains(rank) && !summaries_[rank].ranks.empty() ? summaries_[rank].ranks[0]
                                                                                           : metrics::RankSummary{});
    }
    summary.exit_code = result.exit_code;
    const bool came_to_its_end = !summary.status.empty();
    if (!came_to_its_end) {
      fill(summary);
      summary.status = result.stop_signal != 0 ? "stopped" : "failed";
    }
    if (result.cause) {
      summary.status = "failed";
      summary.error = launch::describe(*result.cause);
    } else if (result.forced_signal != 0 && !came_to_its_end) {
      summary.error =
          fmt::format("ended at once by a second signal (SIG{}) after {} steps: their results are not saved",
                      sigabbrev_np(result.forced_signal), summary.steps);
    }
    return summary;
  }

  const job::Job& job_;
  const RunSettings& settings_;
  metrics::Screen screen_;
  metrics::Progress progress_;
  std::string results_;       ///< for the end
  std::int64_t unshown_ = 0;  ///< lines of ranks since the last that was shown
  std::vector<std::unique_ptr<metrics::Log>> logs_;
  std::map<int, metrics::Summary> summaries_;  ///< the last of each rank: what is planned, then what it did
  metrics::ProgressUpdate last_;               ///< with the last validation loss
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

std::unique_ptr<Display> display_of_launcher(RankLink& link) { return std::make_unique<RemoteDisplay>(link); }

namespace {

int work_as_rank(const job::Job& job, Compiled& compiled, RankLink& link, bool profile) {
  const std::unique_ptr<Display> display = display_of_launcher(link);
  metrics::Summary summary = planned_summary(compiled);
  link.message(summary_message, metrics::to_json(summary));
  try {
    summary = work(job, compiled, {.display = *display, .profile = profile, .link = &link}, summary);
  } catch (const Error&) {
    link.message(summary_message, metrics::to_json(summary));
    throw;
  }
  link.message(summary_message, metrics::to_json(summary));
  link.barrier();
  return summary.exit_code;
}

}  // namespace

namespace {

/// Before anything is created. A rank also has a log.
void require_descriptors(const job::Job& job) {
  const std::uint64_t needed =
      static_cast<std::uint64_t>(job.ranks) * (launch::descriptors_per_rank + 1) + launch::other_descriptors;
  if (const std::uint64_t allowed = launch::raise_descriptor_limit(needed); allowed != 0) {
    throw Error(ErrorCode::job, fmt::format("{}: [job] ranks = {} needs {} open files in the process that starts them, "
                                            "and it may have {}: use fewer ranks, or raise the limit (ulimit -n)",
                                            job.where("job", "ranks"), job.ranks, needed, allowed));
  }
}

/// What killed ranks were about to write goes when all ranks have, however the job ended.
class Leftovers {
 public:
  explicit Leftovers(const metrics::RunDirectory& directory) : directory_(directory) {}
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;
  ~Leftovers() { directory_.remove_unfinished(); }

 private:
  const metrics::RunDirectory& directory_;
};

}  // namespace

metrics::Summary run_ranks(const job::Job& job, const RunSettings& settings, const std::vector<std::string>& words) {
  require_descriptors(job);
  const metrics::RunDirectory directory(job.output);
  directory.remove_older_run();
  const std::filesystem::path job_file = metrics::job_path(job.output);
  files::write_file_atomically(job_file, job::canonical_text(job));
  Ranks ranks(job, settings);
  metrics::Summary summary;
  {
    const Leftovers leftovers(directory);
    summary = ranks.run(job_file, words);
  }
  metrics::write_summary(metrics::summary_path(job.output), summary);
  join_traces(job);
  ranks.finish_screen(summary);
  return summary;
}

std::optional<int> awaited_rank(std::string_view message) {
  constexpr std::string_view name = "(rank ";
  std::size_t at = std::string_view::npos;
  if (const std::size_t wait = message.find("waiting for "); wait != std::string_view::npos) {
    at = message.find(name, wait);
  } else if (const std::size_t lost = std::min(message.find(") is lost"), message.find(") is gone"));
             lost != std::string_view::npos) {
    at = message.rfind(name, lost);
  }
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  int rank = 0;
  const char* const digits = message.data() + at + name.size();
  const auto [end, failed] = std::from_chars(digits, message.data() + message.size(), rank);
  return failed == std::errc() && rank >= 0 ? std::optional(rank) : std::nullopt;
}

int as_rank(const job::Job& job, const launch::RankContext& context, const RankWork& work) {
  // Outside of `try`: what other ranks say of a connection that ends must not come before what this one says.
  std::unique_ptr<launch::Rank> rank;
  std::optional<Compiled> compiled;
  std::optional<RankLink> link;
  const auto fail = [&](launch::FailureKind kind, const std::string& text, std::optional<int> awaited = {}) {
    if (rank != nullptr) {
      rank->fail(kind, text, awaited);
    } else {
      write_to_standard_error(text + "\n");
    }
  };
  try {
    rank = std::make_unique<launch::Rank>(context, hash_of(job), launch::Rank::no_deadline);
    compiled.emplace(compile(job, "cpu", context.rank));
    link.emplace(job, *compiled, *rank);
    link->check_plan();
    link->check_hooks();
    const int code = work(*compiled, *link);
    link.reset();
    rank->goodbye(launch::Rank::no_deadline);
    return code;
  } catch (const Error& error) {
    fail(is_consequence(error.code()) ? launch::FailureKind::consequence : launch::FailureKind::own, error.message(),
         is_consequence(error.code()) ? awaited_rank(error.message()) : std::nullopt);
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    fail(launch::FailureKind::own, "out of memory");
  } catch (const std::exception& error) {
    fail(launch::FailureKind::own, fmt::format("unexpected error: {}", error.what()));
  }
  return 1;
}

int run_as_rank(const job::Job& job, const launch::RankContext& context, bool profile) {
  return as_rank(job, context,
                 [&](Compiled& compiled, RankLink& link) { return work_as_rank(job, compiled, link, profile); });
}

}  // namespace shardrun::task
