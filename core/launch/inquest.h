#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/launch.h"

namespace shardrun::launch {

/// Who is to blame when ranks fail, whoever started them: from what each rank says, and how it ends, the one failure
/// that the others follow from. It starts, waits for and ends nothing.
class Inquest {
 public:
  using Clock = std::chrono::steady_clock;

  struct Subject {
    RankEnd end;
    std::string host;
    std::string last_error_line;
    std::string lost_line;    ///< why its connection ended, where that is all that is known of its end
    Clock::time_point heard;  ///< of it, or its start
    bool joined = false;
    bool abort_heard = false;
    std::optional<int> named;  ///< the rank for which it waited in vain
    bool gone = false;         ///< it will say nothing more
  };

  explicit Inquest(int ranks) : subjects_(static_cast<std::size_t>(ranks)) {}

  [[nodiscard]] Subject& of(int rank) { return subjects_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Subject& of(int rank) const { return subjects_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const std::vector<Subject>& subjects() const { return subjects_; }

  /// A rank says why it fails.
  void says_failed(int rank, FailureKind kind, std::optional<int> awaited, std::string_view text);
  /// A rank is gone: whether that is a failure, and whose. `stop_signal`: what all were asked to stop by, or 0.
  void ended(int rank, int stop_signal);
  /// A rank has been silent for too long: why that is a failure, or nothing. `heartbeat` and `join` of 0 never pass.
  [[nodiscard]] std::optional<std::string> silence(int rank, Clock::time_point now, std::chrono::milliseconds heartbeat,
                                                   std::chrono::milliseconds join) const;
  /// The first failure is the cause, but one that follows from another gives way to the first that does not.
  void blame(int rank, FailureKind kind, std::string text);

  [[nodiscard]] const std::optional<RootCause>& cause() const { return cause_; }
  /// Whether no rank may say more that changes the cause. Ranks wait for each other in a chain, whose end is known only
  /// when all have told of their part: an abort would silence them. Their deadlines pass at almost the same time.
  [[nodiscard]] bool is_settled() const;
  /// The job's outcome, but for what only the launcher knows.
  [[nodiscard]] LaunchResult result() const;

 private:
  void blame_awaited(int rank, int awaited, const std::string& text);
  void set_cause(int rank, FailureKind kind, std::string text);

  std::vector<Subject> subjects_;  ///< by rank
  std::optional<RootCause> cause_;
  FailureKind cause_kind_ = FailureKind::own;
  std::optional<int> accuser_;  ///< the rank that named the cause as the one it waits for
};

}  // namespace shardrun::launch
