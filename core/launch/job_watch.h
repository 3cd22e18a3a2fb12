#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/launch/failure_judge.h"
#include "core/launch/running_timer.h"
#include "core/launch/store_server.h"

namespace shardrun::launch {

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

  /// Listens. Throws Error{io}, or Error{usage} if the address is taken, is not this host's,
  /// or stands for every address.
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

  /// As in FailureJudge. In addition, they begin to end the job if the cause is final.
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
