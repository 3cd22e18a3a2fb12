#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/launch.h"

namespace shardrun::launch {

/// What is known of one rank.
struct RankStatus {
  RankEnd end;
  std::string host;
  std::string last_error_line;
  std::string connection_end;                   ///< why its control connection ended
  std::chrono::steady_clock::time_point heard;  ///< when it was last heard of, or when its time to join began
  bool expected = false;                        ///< it has only some time to join
  bool joined = false;
  bool abort_heard = false;
  std::optional<int> awaited;  ///< the rank that it says it waited for in vain
  bool gone = false;           ///< it will say nothing more
};

/// Decides which rank's failure the others follow from, whoever started the ranks: from what each rank says and how it
/// ends. It starts, waits for and ends nothing.
class FailureJudge {
 public:
  explicit FailureJudge(int ranks) : statuses_(static_cast<std::size_t>(ranks)) {}

  [[nodiscard]] RankStatus& of(int rank) { return statuses_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const RankStatus& of(int rank) const { return statuses_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<RankStatus>& statuses() const { return statuses_; }

  /// A rank says why it fails. `awaited`: the rank that it waited for in vain.
  void failed(int rank, FailureKind kind, std::optional<int> awaited, std::string_view text);
  /// A rank is gone: decides whether that is a failure, and whose. `stop_signal`: what all were asked to stop by, or 0.
  void ended(int rank, int stop_signal);
  /// Takes this failure as the cause if there is none yet, or if the cause so far is a consequence and this one is not.
  void blame(int rank, FailureKind kind, std::string text);

  [[nodiscard]] const std::optional<RootCause>& cause() const { return cause_; }
  /// Whether no report of a rank can change the cause any more. Ranks wait for each other in a chain, whose end is
  /// known only when all have told of their part: an abort would silence them. Their deadlines pass at almost the same
  /// time.
  [[nodiscard]] bool is_final() const;
  /// The job's outcome, except for what the owner of the ranks alone knows.
  [[nodiscard]] LaunchResult result() const;

 private:
  void blame_awaited(int rank, int awaited, const std::string& text);
  void set_cause(int rank, FailureKind kind, std::string text);

  std::vector<RankStatus> statuses_;  ///< by rank
  std::optional<RootCause> cause_;
  FailureKind cause_kind_ = FailureKind::own;
  std::optional<int> reporter_;  ///< the rank that waited in vain for the cause; none where the cause failed itself
};

}  // namespace shardrun::launch
