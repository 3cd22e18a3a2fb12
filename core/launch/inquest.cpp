#include "core/launch/inquest.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/launch/status.h"

namespace shardrun::launch {

void Inquest::says_failed(int rank, FailureKind kind, std::optional<int> awaited, std::string_view text) {
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

void Inquest::ended(int rank, int stop_signal) {
  const Subject& gone = of(rank);
  const bool is_unseen = !gone.end.exit_code && gone.end.signal == 0;  // another launcher's process
  if (gone.end.killed || (is_unseen ? gone.end.said_goodbye : ended_well(gone.end, stop_signal))) {
    return;
  }
  const FailureKind kind = gone.end.failure.value_or(gone.abort_heard ? FailureKind::consequence : FailureKind::own);
  std::string text = gone.end.text;
  if (text.empty()) {
    text = is_unseen ? fmt::format(
                           "its process has ended, or cannot be reached any more: its control connection "
                           "ended: {}",
                           gone.lost_line)
                     : end_text(gone.end, gone.joined);
    if (!gone.last_error_line.empty()) {
      text += fmt::format("; its last line on standard error: {}", gone.last_error_line);
    }
  }
  blame(rank, kind, std::move(text));
}

std::optional<std::string> Inquest::silence(int rank, Clock::time_point now, std::chrono::milliseconds heartbeat,
                                            std::chrono::milliseconds join) const {
  const Subject& silent = of(rank);
  const std::chrono::milliseconds limit = silent.joined ? heartbeat : join;
  if (silent.gone || silent.end.killed || limit.count() == 0 || now - silent.heard <= limit) {
    return std::nullopt;
  }
  const double seconds = std::chrono::duration<double>(now - silent.heard).count();
  if (silent.end.said_goodbye) {
    return fmt::format("said goodbye, but has not ended {:.1f} s later", seconds);
  }
  if (!silent.joined) {
    return fmt::format("has not joined the job within {:.1f} s", seconds);
  }
  return fmt::format("has not answered for {:.1f} s", seconds);
}

void Inquest::blame(int rank, FailureKind kind, std::string text) {
  if (!cause_ || (cause_kind_ == FailureKind::consequence && kind == FailureKind::own)) {
    accuser_.reset();
    set_cause(rank, kind, std::move(text));
  }
}

/// Whoever waits in vain names whom it waits for, who may say the same of another. One that has said so is no cause,
/// but for two that lose each other: the first to be named is told of with its own words beside those of the other.
void Inquest::blame_awaited(int rank, int awaited, const std::string& text) {
  const bool names_nobody = cause_ && cause_kind_ == FailureKind::consequence && !accuser_;
  const bool is_better = !cause_ || names_nobody || (accuser_ && cause_->rank == rank);
  of(rank).named = awaited;
  if (is_better && !of(awaited).named) {
    accuser_ = rank;
    set_cause(awaited, FailureKind::consequence,
              fmt::format("does not answer other ranks, though it answers the launcher: rank {} (pid {}): {}", rank,
                          of(rank).end.pid, text));
  }
}

void Inquest::set_cause(int rank, FailureKind kind, std::string text) {
  cause_kind_ = kind;
  cause_ = RootCause{.rank = rank, .host = of(rank).host, .pid = of(rank).end.pid, .text = std::move(text)};
}

bool Inquest::is_settled() const {
  const auto may_say_more = [this](const Subject& each) {
    return each.joined && !each.gone && !each.end.failure && !each.end.said_goodbye && &each != &of(cause_->rank);
  };
  return cause_ && (cause_kind_ == FailureKind::own || std::none_of(subjects_.begin(), subjects_.end(), may_say_more));
}

LaunchResult Inquest::result() const {
  LaunchResult result{.cause = cause_};
  for (const Subject& each : subjects_) {
    result.ranks.push_back(each.end);
    if (result.exit_code == 0) {
      result.exit_code = each.end.exit_code.value_or(0);
    }
  }
  if (result.cause) {
    const RankEnd& end = of(result.cause->rank).end;
    if (accuser_ && of(result.cause->rank).named == accuser_) {
      result.cause->text += fmt::format("; rank {} itself: {}", result.cause->rank, end.text);
    }
    if (!end.killed) {
      result.cause->exit_code = end.exit_code;
      result.cause->signal = end.signal;
    }
    result.exit_code = 1;
  }
  return result;
}

}  // namespace shardrun::launch
