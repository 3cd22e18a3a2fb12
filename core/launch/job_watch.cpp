#include "core/launch/job_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "core/base/process.h"
#include "core/launch/status.h"

namespace shardrun::launch {
namespace {

using std::chrono::milliseconds;

/// Why a process of this machine is silent, if the kernel knows: ": it is stopped (…)". Otherwise empty.
std::string state_text(const RankStatus& rank) {
  if (rank.host != host_name()) {
    return "";
  }
  std::ifstream file(fmt::format("/proc/{}/stat", rank.end.pid));
  std::string stat;
  std::getline(file, stat);
  const std::size_t name_end = stat.rfind(") ");
  const char state = name_end == std::string::npos || name_end + 2 >= stat.size() ? '?' : stat[name_end + 2];
  return state == 'T'   ? ": its process is stopped (SIGSTOP, or by a terminal)"
         : state == 't' ? ": a debugger has stopped its process"
         : state == 'D' ? ": its process waits for a disk or a file system"
                        : "";
}

/// Why a rank has been silent for too long, or nothing.
std::optional<std::string> silence_reason(const RankStatus& rank, JobWatch::Clock::time_point now,
                                          milliseconds heartbeat_timeout, milliseconds join_timeout) {
  const milliseconds limit = rank.joined ? heartbeat_timeout : rank.expected ? join_timeout : milliseconds(0);
  if (rank.gone || rank.end.killed || limit.count() == 0 || now - rank.heard <= limit) {
    return std::nullopt;
  }
  const double seconds = std::chrono::duration<double>(now - rank.heard).count();
  if (rank.end.said_goodbye) {
    return fmt::format("said goodbye, but has not ended {:.1f} s later", seconds);
  }
  if (!rank.joined) {
    return fmt::format("has not joined the job within {:.1f} s", seconds);
  }
  return fmt::format("has not answered for {:.1f} s{}", seconds, state_text(rank));
}

}  // namespace

void FailureJudge::failed(int rank, FailureKind kind, std::optional<int> awaited, std::string_view text) {
  RankEnd& end = of(rank).end;
  if (end.failure) {
    return;
  }
  end.failure = kind;
  end.text = text;
  if (kind == FailureKind::consequence && awaited) {
    blame_awaited(rank, *awaited, end.text);
  } else {
    blame(rank, kind, end.text);
  }
}

void FailureJudge::ended(int rank, int stop_signal) {
  const RankStatus& gone = of(rank);
  /// The exit of a rank that another launcher started is not seen.
  const bool is_unseen = !gone.end.exit_code && gone.end.signal == 0;
  if (gone.end.killed || (is_unseen ? gone.end.said_goodbye : ended_well(gone.end, stop_signal))) {
    return;
  }
  const FailureKind kind = gone.end.failure.value_or(gone.abort_heard ? FailureKind::consequence : FailureKind::own);
  std::string text = gone.end.text;
  if (text.empty()) {
    text = is_unseen ? fmt::format(
                           "its process has ended, or cannot be reached any more: its control connection "
                           "ended: {}",
                           gone.connection_end)
                     : end_text(gone.end, gone.joined);
    if (!gone.last_error_line.empty()) {
      text += fmt::format("; its last line on standard error: {}", gone.last_error_line);
    }
  }
  blame(rank, kind, std::move(text));
}

void FailureJudge::blame(int rank, FailureKind kind, std::string text) {
  if (!cause_ || (cause_kind_ == FailureKind::consequence && kind != FailureKind::consequence)) {
    reporter_.reset();
    set_cause(rank, kind, std::move(text));
  }
}

/// A rank that names another rank is not the cause. There is one exception: if two ranks name each other, the one
/// reported first is the cause. The text then has both reports and blames neither.
void FailureJudge::blame_awaited(int rank, int awaited, const std::string& text) {
  const bool names_nobody = cause_ && cause_kind_ == FailureKind::consequence && !reporter_;
  const bool is_better = !cause_ || names_nobody || (reporter_ && cause_->rank == rank);
  of(rank).awaited = awaited;
  if (is_better && !of(awaited).awaited) {
    reporter_ = rank;
    set_cause(awaited, FailureKind::consequence,
              fmt::format("does not answer other ranks, though it answers the launcher: rank {} (pid {}): {}", rank,
                          of(rank).end.pid, text));
  }
}

void FailureJudge::set_cause(int rank, FailureKind kind, std::string text) {
  cause_kind_ = kind;
  cause_ = RootCause{.rank = rank,
                     .host = of(rank).host,
                     .pid = of(rank).end.pid,
                     .text = std::move(text),
                     .is_permanent = kind == FailureKind::permanent};
}

bool FailureJudge::is_final() const {
  const auto may_report = [](const RankStatus& each) {
    return each.joined && !each.gone && !each.end.failure && !each.end.said_goodbye;
  };
  return cause_ &&
         (cause_kind_ != FailureKind::consequence || std::none_of(statuses_.begin(), statuses_.end(), may_report));
}

LaunchResult FailureJudge::result() const {
  LaunchResult result{.cause = cause_};
  for (const RankStatus& each : statuses_) {
    result.ranks.push_back(each.end);
    if (result.exit_code == 0) {
      result.exit_code = each.end.exit_code.value_or(0);
    }
  }
  if (result.cause) {
    const RankEnd& end = of(result.cause->rank).end;
    if (reporter_ && of(result.cause->rank).awaited == reporter_) {
      result.cause->text =
          fmt::format("it and rank {0} wait for each other: rank {0} (pid {1}): {2}; rank {3} itself: {4}", *reporter_,
                      of(*reporter_).end.pid, of(*reporter_).end.text, result.cause->rank, end.text);
    }
    if (!end.killed) {
      result.cause->exit_code = end.exit_code;
      result.cause->signal = end.signal;
    }
    result.exit_code = 1;
  }
  return result;
}

JobWatch::JobWatch(boost::asio::io_context& io, JobWatchSettings settings, JobWatchEvents events)
    : settings_(std::move(settings)),
      events_(std::move(events)),
      ticker_(io),
      report_timer_(io),
      grace_(io),
      last_tick_(Clock::now()),
      judge_(ranks()),
      store_(io, settings_.store, store_events()) {}

StoreServerEvents JobWatch::store_events() {
  return {.joined =
              [this](int rank, const Hello& hello) {
                RankStatus& status = judge_.of(rank);
                status.joined = true;
                status.heard = Clock::now();
                status.host = hello.host;
                ++joined_;
                events_.joined(rank, hello);
              },
          .came_with_other_job = events_.came_with_other_job,
          .heard = [this](int rank) { judge_.of(rank).heard = Clock::now(); },
          .message = events_.message,
          .failed =
              [this](int rank, FailureKind kind, std::optional<int> awaited, std::string_view text) {
                judge_.failed(rank, kind, awaited, text);
                end_if_failed();
                events_.failed(rank);
              },
          .abort_heard = [this](int rank) { judge_.of(rank).abort_heard = true; },
          .said_goodbye =
              [this](int rank) {
                judge_.of(rank).end.said_goodbye = true;
                events_.said_goodbye(rank);
              },
          .paused = events_.paused,
          .closed =
              [this](int rank, const std::string& why) {
                judge_.of(rank).connection_end = why;
                events_.closed(rank);
              },
          .log = events_.log};
}

void JobWatch::start() {
  last_tick_ = Clock::now();
  tick();
}

void JobWatch::expect(int rank) {
  RankStatus& status = judge_.of(rank);
  status.expected = true;
  if (!status.joined) {
    status.heard = Clock::now();
  }
}

void JobWatch::forget_silence() {
  last_tick_ = Clock::now();
  for (int rank = 0; rank < ranks(); ++rank) {
    judge_.of(rank).heard = last_tick_;
  }
}

milliseconds JobWatch::tick_interval() const {
  milliseconds tick = settings_.longest_tick;
  for (const milliseconds timeout : {settings_.heartbeat_timeout, settings_.join_timeout}) {
    tick = timeout.count() > 0 ? std::min(tick, timeout / 8) : tick;
  }
  return std::max(tick, milliseconds(5));
}

void JobWatch::tick() {
  const milliseconds interval = tick_interval();
  const Clock::time_point now = Clock::now();
  const Clock::duration missed = time_held_up(now - last_tick_, interval);
  last_tick_ = now;
  for (int rank = 0; rank < ranks(); ++rank) {
    judge_.of(rank).heard += missed;
  }
  events_.tick(now);  // first, because the end of a rank is the cause rather than another rank's silence
  for (int rank = 0; rank < ranks(); ++rank) {
    check_silence(rank, now);
  }
  ticker_.expires_after(interval);
  ticker_.async_wait([this](const boost::system::error_code& cancelled) {
    if (!cancelled) {
      tick();
    }
  });
}

void JobWatch::check_silence(int rank, Clock::time_point now) {
  if (is_ending_) {
    return;
  }
  if (std::optional<std::string> why =
          silence_reason(judge_.of(rank), now, settings_.heartbeat_timeout, settings_.join_timeout)) {
    events_.silent(rank);
    blame(rank, FailureKind::own, std::move(*why));
  }
}

void JobWatch::blame(int rank, FailureKind kind, std::string text) {
  judge_.blame(rank, kind, std::move(text));
  end_if_failed();
}

void JobWatch::ended(int rank, int stop_signal) {
  judge_.ended(rank, stop_signal);
  end_if_failed();
}

void JobWatch::end_if_failed() {
  if (is_ending_ || !judge_.cause()) {
    return;
  }
  const bool is_first = !first_failure_;
  if (is_first) {
    first_failure_ = Clock::now();
  }
  if (judge_.is_final()) {
    end(describe(*judge_.cause()));
  } else if (is_first) {
    report_timer_.start(settings_.report_time, [this] { end(describe(*judge_.cause())); });
  }
}

void JobWatch::end(const std::string& reason) {
  if (std::exchange(is_ending_, true)) {
    return;
  }
  first_failure_ = first_failure_.value_or(Clock::now());
  report_timer_.cancel();
  store_.abort(reason);
  events_.ending();
  grace_.start(settings_.grace, events_.grace_over);
}

LaunchResult JobWatch::result() const {
  LaunchResult result = judge_.result();
  result.strangers = store_.strangers();
  if (is_ending_) {
    result.ending = Clock::now() - *first_failure_;
  }
  return result;
}

}  // namespace shardrun::launch
