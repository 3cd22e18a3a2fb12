#include "core/run/rank_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/checkpoint/saved_state.h"
#include "core/metrics/run_files.h"
#include "core/train/rank_link.h"
#include "core/train/steps.h"

namespace shardrun::run {
namespace {

// More kinds of messages from ranks to the launcher, beside line_message and summary_message.
constexpr const char* progress_message = "progress";
constexpr const char* finish_message = "finish";
constexpr const char* activity_message = "activity";
constexpr const char* result_message = "result";
constexpr const char* saved_message = "saved";
constexpr const char* rates_message = "rates";
constexpr const char* numbers_message = "numbers";

std::string to_text(const screen::ProgressUpdate& update) {
  const double none = std::nan("");
  return fmt::format("{} {} {} {}", update.step, update.loss.value_or(none), update.val_loss.value_or(none),
                     update.rate);
}

screen::ProgressUpdate update_of(std::string_view text) {
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

/// Shows the first rank's progress on the launcher's screen.
class RemoteDisplay final : public metrics::Display {
 public:
  explicit RemoteDisplay(train::RankLink& link) : link_(link) {}

  void update(const screen::ProgressUpdate& update) override { link_.message(progress_message, to_text(update)); }
  void now_at(std::string_view what, std::int64_t done, std::int64_t total) override {
    const auto now = std::chrono::steady_clock::now();
    if (what == told_ && now - told_at_ < least_interval) {
      return;
    }
    told_ = what;
    told_at_ = now;
    link_.message(activity_message, fmt::format("{} {} {}", done, total, what));
  }
  void line(std::string_view text) override { link_.message(line_message, text); }
  void numbers(std::string_view line) override { link_.message(numbers_message, line); }
  void rates(const metrics::RankRates& rates) override { link_.message(rates_message, to_text(rates)); }
  void finish() override { link_.message(finish_message, ""); }
  void results_are(Results results) override {
    link_.message(saved_message, std::to_string(static_cast<int>(results)));
  }
  void result(std::string_view text) override {
    for (std::size_t at = 0; at < text.size(); at += piece_bytes) {
      link_.message(result_message, text.substr(at, piece_bytes));
    }
  }

 private:
  /// The size of pieces of a result, because a sample may be longer than a message.
  static constexpr std::size_t piece_bytes = std::size_t{256} * 1024;

  /// The least time between two messages about the same activity.
  static constexpr std::chrono::milliseconds least_interval{100};

  train::RankLink& link_;
  std::string told_;
  std::chrono::steady_clock::time_point told_at_;
};

/// If more bytes than this wait for the screen, further output of ranks is dropped.
constexpr std::size_t most_waiting_output = std::size_t{1024} * 1024;

/// Seconds between two lines of ranks.jsonl, except before the last one.
constexpr double least_between_lines = 2;

/// Adds the ranks' reports of later steps to `sums`.
void add_up(std::vector<metrics::RankRates>& sums, const std::vector<metrics::RankRates>& ranks) {
  if (sums.empty()) {
    sums = ranks;
    return;
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    sums[rank].add(ranks[rank]);
  }
}

}  // namespace

std::unique_ptr<metrics::Display> display_of_launcher(train::RankLink& link) {
  return std::make_unique<RemoteDisplay>(link);
}

RankReports::RankReports(const job::Job& job, const RunSettings& settings, int logs, std::int64_t first_step)
    : job_(job),
      settings_(settings),
      first_step_(first_step),
      screen_(settings.progress.write),
      progress_(screen::through(screen_, settings.progress), checkpoint::last_step(job),
                job.task == job::Task::train ? job.train.log_every : 0, train::rate_unit(job)),
      ticker_(std::chrono::seconds(1), [this] { progress_.tick(); }) {
  progress_.now_at(fmt::format("waiting for {} to join", counted(job.ranks, "rank")));
  for (int rank = 0; rank < logs; ++rank) {
    logs_.push_back(std::make_unique<metrics::Log>(metrics::log_path(job.output, rank)));
  }
  if (job.ranks > 1 && (job.task == job::Task::train || job.task == job::Task::iterate)) {
    times_.emplace(metrics::ranks_path(job.output));
  }
}

void RankReports::show(const launch::OutputLine& line) {
  log(static_cast<std::size_t>(line.rank), line.text);
  if (screen_.waiting_bytes() > most_waiting_output) {
    ++unshown_;
    return;
  }
  if (unshown_ > 0) {
    progress_.print(fmt::format("({} of ranks only in their logs: more than the screen took)",
                                counted(std::exchange(unshown_, 0), "line")));
  }
  progress_.print(fmt::format("[{}] {}", line.rank, line.text));
}

void RankReports::take(const launch::RankMessage& message) {
  if (message.kind == progress_message) {
    note(update_of(message.bytes));
  } else if (message.kind == activity_message) {
    show_activity(message.bytes);
  } else if (message.kind == line_message) {
    progress_.print(message.bytes);
  } else if (message.kind == finish_message) {
    progress_.finish();
  } else if (message.kind == saved_message) {
    saved_ =
        message.bytes == std::to_string(static_cast<int>(Results::saved)) ? Results::saved : Results::being_written;
  } else if (message.kind == rates_message) {
    take_rates(message.rank, metrics::rates_of(message.bytes));
  } else if (message.kind == numbers_message) {
    if (settings_.numbers != nullptr) {
      settings_.numbers->take(message.rank, message.bytes);
    }
  } else if (message.kind == result_message) {
    results_ += message.bytes;
  } else if (message.kind == summary_message) {
    summaries_[message.rank] = metrics::parse_summary(message.bytes);
  }
}

void RankReports::log(std::size_t rank, std::string_view line) {
  logs_[rank]->write(line);
  if (const std::string failure = logs_[rank]->take_failure(); !failure.empty()) {
    notice(failure);
  }
}

void RankReports::tell_older(const std::string& older) {
  if (!older.empty()) {
    tell(older);
  }
}

void RankReports::show_activity(std::string_view text) {
  std::array<std::int64_t, 2> numbers = {};
  for (std::int64_t& number : numbers) {
    const char* const end = std::from_chars(text.data(), text.data() + text.size(), number).ptr;
    text.remove_prefix(std::min(text.size(), static_cast<std::size_t>(end - text.data()) + 1));
  }
  if (text == metrics::first_step_activity) {
    has_begun_ = true;
  }
  progress_.now_at(text, numbers[0], numbers[1]);
}

void RankReports::take_rates(int rank, const metrics::RankRates& rates) {
  std::map<int, metrics::RankRates>& of_step = rates_[rates.step];
  of_step[rank] = rates;
  if (of_step.size() < static_cast<std::size_t>(job_.ranks)) {
    return;
  }
  std::vector<metrics::RankRates> all;
  for (const auto& [each, its_rates] : of_step) {
    all.push_back(its_rates);
  }
  rates_.erase(rates.step);
  look_for_slow_ranks(all);
  show_rates(all);
  add_up(since_written_, all);
  if (metrics::seconds_since(written_at_) >= least_between_lines) {
    write_times();
  }
}

void RankReports::look_for_slow_ranks(const std::vector<metrics::RankRates>& ranks) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    hosts.push_back(summaries_[rank].ranks.empty() ? "" : summaries_[rank].ranks.front().host);
  }
  const metrics::SlowRanks::Change change = slow_ranks_.add(ranks, hosts);
  for (const metrics::SlowRank& slow : change.ended) {
    tell(metrics::line_of_end(slow));
  }
  for (const metrics::SlowRank& slow : change.begun) {
    tell(metrics::line_of_begin(slow));
  }
  if (settings_.numbers != nullptr) {
    settings_.numbers->take(slow_ranks_.present());
  }
}

void RankReports::show_rates(const std::vector<metrics::RankRates>& ranks) {
  if (!settings_.profile || !job_.engine.name.empty()) {
    return;
  }
  add_up(since_shown_, ranks);
  const std::int64_t step = ranks.front().step;
  if (step % train::profile_interval(job_) == 0 || step == checkpoint::last_step(job_)) {
    progress_.print(metrics::rates_line(std::exchange(since_shown_, {}), job_.cluster.flops));
  }
}

void RankReports::write_times() {
  written_at_ = std::chrono::steady_clock::now();
  const std::vector<metrics::RankRates> ranks = std::exchange(since_written_, {});
  if (ranks.empty() || !times_) {
    return;
  }
  using Rates = metrics::RankRates;
  const auto column = [&](double (*number)(const Rates&)) {
    std::vector<double> numbers;
    for (const Rates& rank : ranks) {
      numbers.push_back(number(rank));
    }
    return numbers;
  };
  const std::vector<double> seconds = column([](const Rates& rank) { return rank.seconds; });
  const std::vector<double> computing = column([](const Rates& rank) { return rank.computing(); });
  const std::vector<double> exposed = column([](const Rates& rank) { return rank.waiting; });
  const std::vector<double> hidden = column([](const Rates& rank) { return rank.communicating - rank.waiting; });
  const std::vector<double> input = column([](const Rates& rank) { return rank.input; });
  const std::vector<double> sent = column([](const Rates& rank) { return rank.bytes; });
  const std::vector<double> stopped = column([](const Rates& rank) { return rank.stopped; });
  const std::vector<double> starved = column([](const Rates& rank) { return rank.starved; });
  const std::vector<double> arrived = column([](const Rates& rank) { return rank.slowest.bytes + rank.others.bytes; });
  const std::vector<double> arriving =
      column([](const Rates& rank) { return rank.slowest.seconds + rank.others.seconds; });
  const std::string slow = metrics::to_json(slow_ranks_.found());
  std::vector<metrics::JsonField> fields = {{"step", ranks.front().step},      {"steps", ranks.front().steps},
                                            {"seconds", std::span(seconds)},   {"computing_s", std::span(computing)},
                                            {"exposed_s", std::span(exposed)}, {"hidden_s", std::span(hidden)},
                                            {"input_s", std::span(input)},     {"sent_bytes", std::span(sent)},
                                            {"stopped_s", std::span(stopped)}, {"starved_s", std::span(starved)}};
  if (std::ranges::any_of(arrived, [](double bytes) { return bytes > 0; })) {
    fields.push_back({"arrived_bytes", std::span(arrived)});
    fields.push_back({"arrived_s", std::span(arriving)});
  }
  if (!slow_ranks_.found().empty()) {
    fields.push_back({"slow_ranks", metrics::JsonText{slow}});
  }
  try {
    times_->write(fields);
  } catch (const Error& error) {
    times_.reset();
    tell(error.message());
  }
}

void RankReports::note(const screen::ProgressUpdate& update) {
  const std::optional<double> val_loss = update.val_loss ? update.val_loss : last_.val_loss;
  last_ = update;
  last_.val_loss = val_loss;
  progress_.update(update);
}

void RankReports::fill(metrics::Summary& summary) const {
  summary.steps = std::max<std::int64_t>(0, last_.step - first_step_);
  summary.loss = last_.loss;
  summary.val_loss = last_.val_loss;
  summary.tokens_per_s = job_.task == job::Task::train ? last_.rate : 0;
  summary.seconds = metrics::seconds_since(begin_);
}

metrics::Summary RankReports::merge(const launch::LaunchResult& result, const std::filesystem::path& folder) {
  write_times();
  metrics::Summary summary = summaries_.contains(0) ? summaries_[0] : metrics::Summary{};
  summary.slow_ranks = slow_ranks_.found();
  summary.ranks.clear();
  for (int rank = 0; rank < static_cast<int>(job_.ranks); ++rank) {
    summary.ranks.push_back(summaries_.contains(rank) && !summaries_[rank].ranks.empty() ? summaries_[rank].ranks[0]
                                                                                         : metrics::RankSummary{});
  }
  summary.strangers = result.strangers;
  const bool came_to_its_end = !summary.status.empty();
  const bool is_saved = came_to_its_end && summary.status == "stopped" && job_.checkpoints.used && !result.cause;
  summary.exit_code = is_saved ? summary.exit_code : result.exit_code;
  if (!came_to_its_end) {
    fill(summary);
    summary.status = result.stop_signal != 0 ? "stopped" : "failed";
  }
  if (result.cause) {
    summary.status = "failed";
    summary.ending_s = std::chrono::duration<double>(result.ending).count();
    summary.error =
        launch::describe(*result.cause) + train::tell_flights(folder, static_cast<int>(job_.ranks), result.cause->rank);
    return summary;
  }
  train::drop_flights(folder);
  if (result.forced_signal != 0 && !came_to_its_end) {
    summary.error = fmt::format("ended at once by a second signal (SIG{}) after {}: {}",
                                sigabbrev_np(result.forced_signal), counted(summary.steps, "step"), text_of(saved_));
  } else if (result.stop_signal != 0 && !came_to_its_end && summary.steps == 0) {
    summary.error = fmt::format("stopped by SIG{} before the first step", sigabbrev_np(result.stop_signal));
    summary.exit_code = train::exit_code_of_stop(job_, result.stop_signal);
  }
  return summary;
}

void RankReports::finish_screen(const metrics::Summary& summary) {
  progress_.leave();
  if (!results_.empty()) {
    screen_.write(results_);
  }
  const bool is_whole = summary.status == "finished";
  static_cast<void>(screen_.finish([&] { return is_whole && stop_requested() == 0; }));
}

}  // namespace shardrun::run
