#include "core/launch/failure_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/launch/status.h"

namespace shardrun::launch {

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
  /// Another launcher started this rank, so its exit is not seen.
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
  const auto may_report = [this](const RankStatus& each) {
    return each.joined && !each.gone && !each.end.failure && !each.end.said_goodbye && &each != &of(cause_->rank);
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

}  // namespace shardrun::launch
