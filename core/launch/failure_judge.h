#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/launch.h"

namespace shardrun::launch {

/// Facts about one rank.
struct RankStatus {
  RankEnd end;
  std::string host;
  std::string last_error_line;
  std::string connection_end;                   ///< why its control connection ended
  std::chrono::steady_clock::time_point heard;  ///< when it was last heard from, or when its time to join began
  bool expected = false;                        ///< its time to join is running
  bool joined = false;
  bool abort_heard = false;
  std::optional<int> awaited;  ///< the rank that it reported to have waited for until a timeout
  bool gone = false;           ///< it will send nothing more
};

/// Decides which rank's failure is the root cause, from the ranks' reports and from how they end. It does not depend on
/// who started the ranks, and does not itself start, wait for or end anything.
class FailureJudge {
 public:
  explicit FailureJudge(int ranks) : statuses_(static_cast<std::size_t>(ranks)) {}

  [[nodiscard]] RankStatus& of(int rank) { return statuses_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const RankStatus& of(int rank) const { return statuses_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<RankStatus>& statuses() const { return statuses_; }

  /// Called when a rank reports why it fails. `awaited`: the rank for which it waited until a timeout.
  void failed(int rank, FailureKind kind, std::optional<int> awaited, std::string_view text);
  /// Called when a rank is gone. Decides whether it failed, and which rank caused that. `stop_signal`: the signal that
  /// asked all ranks to stop, or 0.
  void ended(int rank, int stop_signal);
  /// Makes this failure the cause if there is no cause yet, or if the cause so far is a consequence and this
  /// failure is not.
  void blame(int rank, FailureKind kind, std::string text);

  [[nodiscard]] const std::optional<RootCause>& cause() const { return cause_; }
  /// Whether no further report can change the cause. Ranks may wait for each other in a chain, and time out at almost
  /// the same moment. The first link of the chain is known only when all of them have reported; an abort would keep
  /// them from reporting.
  [[nodiscard]] bool is_final() const;
  /// The job's outcome, without the parts that only the owner of the processes knows.
  [[nodiscard]] LaunchResult result() const;

 private:
  void blame_awaited(int rank, int awaited, const std::string& text);
  void set_cause(int rank, FailureKind kind, std::string text);

  std::vector<RankStatus> statuses_;  ///< by rank
  std::optional<RootCause> cause_;
  FailureKind cause_kind_ = FailureKind::own;
  /// The rank that reported that it waited for the cause; none if the cause reported its own failure.
  std::optional<int> reporter_;
};

}  // namespace shardrun::launch
