#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/launch.h"
#include "core/launch/running_timer.h"
#include "core/launch/store_server.h"

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
  /// Whether no further report can change the cause or what is said about it. Ranks can wait for each other in a chain,
  /// and time out at almost the same moment. The rank at the end of the chain is known only when all of them have
  /// reported, and an abort would keep them from reporting.
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

struct JobWatchSettings {
  StoreServerSettings store;
  std::chrono::milliseconds heartbeat_timeout{10000};  ///< a rank that is silent for longer ends the job; 0: no limit
  std::chrono::milliseconds join_timeout{60000};       ///< from expect() to a rank's hello; 0: no limit
  std::chrono::milliseconds report_time{500};          ///< from a failure that is a consequence to the abort
  std::chrono::milliseconds grace{2000};               ///< from abort to `grace_over`
  std::chrono::milliseconds longest_tick{1000};        ///< the longest time between two checks of the ranks
};

/// Callbacks for the owner of a JobWatch. All must be set.
struct JobWatchEvents {
  std::function<void(int rank, const Hello& hello)> joined;
  std::function<void(const Hello& hello, const std::string& why)> came_with_other_job;
  std::function<void(int rank, std::string_view kind, std::string_view bytes)> message;
  std::function<void(int rank)> failed;
  std::function<void(int rank)> said_goodbye;
  std::function<void(int rank)> paused;
  std::function<void(int rank)> closed;  ///< its control connection has ended
  std::function<void(int rank)> silent;  ///< it was silent for too long, which ends the job
  std::function<void(std::chrono::steady_clock::time_point now)> tick;
  std::function<void()> ending;  ///< the ranks have been told to abort
  std::function<void()> grace_over;
  std::function<void(const std::string& line)> log;
};

/// Watches the ranks of a job, whoever started them. Serves their store, and tracks which ranks join, fail, fall silent
/// or end. Begins to end the job when a failure is known. Used only on the thread of `io`.
class JobWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// Listens. Throws Error{io}; Error{usage} if the address is taken, not this host's, or stands for every address.
  JobWatch(boost::asio::io_context& io, JobWatchSettings settings, JobWatchEvents events);

  [[nodiscard]] StoreServer& store() { return store_; }
  [[nodiscard]] const StoreServer& store() const { return store_; }
  [[nodiscard]] RankStatus& status(int rank) { return judge_.of(rank); }
  [[nodiscard]] const FailureJudge& judge() const { return judge_; }
  [[nodiscard]] int joined() const { return joined_; }
  [[nodiscard]] bool have_all_joined() const { return joined_ == ranks(); }

  /// Starts to look for silent ranks.
  void start();
  /// Starts to wait for the rank to join, for at most `join_timeout`.
  void expect(int rank);
  /// Counts every rank as heard from now. Called after this process was suspended.
  void forget_silence();

  /// blame() and ended() do what FailureJudge's functions do, and then call end_if_failed(). After a failure, it begins
  /// to end the job: at once if the cause is final, otherwise `report_time` after the first failure.
  void blame(int rank, FailureKind kind, std::string text);
  void ended(int rank, int stop_signal);
  void end_if_failed();

  /// Begins to end the job now, without waiting for other ranks' reports: tells the ranks to abort.
  void end(const std::string& reason);
  [[nodiscard]] bool is_ending() const { return is_ending_; }

  /// The job's outcome, without the parts that only the owner of the processes knows.
  [[nodiscard]] LaunchResult result() const;

 private:
  [[nodiscard]] StoreServerEvents store_events();
  [[nodiscard]] int ranks() const { return settings_.store.world_size; }
  [[nodiscard]] std::chrono::milliseconds tick_interval() const;
  void tick();
  void check_silence(int rank, Clock::time_point now);

  const JobWatchSettings settings_;
  const JobWatchEvents events_;
  boost::asio::steady_timer ticker_;
  RunningTimer report_timer_;
  RunningTimer grace_;
  Clock::time_point last_tick_;
  FailureJudge judge_;
  int joined_ = 0;
  std::optional<Clock::time_point> first_failure_;  ///< when the first failure was known
  bool is_ending_ = false;
  StoreServer store_;
};

}  // namespace shardrun::launch
