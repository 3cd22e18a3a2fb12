#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/launch/job_watch.h"
#include "core/launch/launch.h"

namespace shardrun::launch {

/// Callbacks are called on the host's own thread, one at a time, and may be empty; none is called once wait() has
/// returned. What on_message throws fails the job.
struct HostSettings {
  std::string address;  ///< where it listens: a numeric one of this machine
  std::uint16_t port = 0;
  int ranks = 1;
  Token token = {};
  std::string job;  ///< what ranks must come with: Rank's argument
  std::string run;  ///< a name of this run alone

  std::chrono::milliseconds heartbeat_timeout{10000};  ///< a rank silent for so long ends the job; 0: none does
  std::chrono::milliseconds join_timeout{300000};      ///< from expect_ranks() to a rank's hello
  std::chrono::milliseconds first_reminder{5000};      ///< from then until it is told which ranks are missing
  std::chrono::milliseconds reminder{30000};           ///< and told again
  std::chrono::milliseconds report_time{500};          ///< see LaunchSettings
  std::chrono::milliseconds grace{2000};               ///< from abort until ranks are waited for no more
  std::chrono::milliseconds stranger_timeout{5000};    ///< for a connection to say hello

  std::function<int()> stop_signal;  ///< what has asked this process to stop: it ends a job that has not begun
  std::function<bool()> has_begun;   ///< whether ranks are at work that a stop has to end in order; empty: always
  std::function<void(const RankMessage& message)> on_message;
  std::function<void(std::string_view line)> on_log;
  std::function<void(std::string_view line)> on_notice;
  /// The job has failed, and this process's own rank still does not call wait() after `grace`: it must not return.
  std::function<void(const LaunchResult& result)> last_resort;
};

/// The launcher's part among ranks that another launcher started, in the process of rank 0: watches the job on a thread
/// of its own. It sees no process end, only connections.
class StoreHost {
 public:
  /// Listens, and answers nobody yet. Throws Error{io}, or Error{usage} where that place cannot be had.
  explicit StoreHost(HostSettings settings);
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;
  ~StoreHost();  ///< ends all connections, for which ranks that have said goodbye wait

  [[nodiscard]] std::uint16_t port() const { return watch_.store().port(); }

  /// Begins to answer, and to call back; once.
  void start();

  /// The others know by now where to come: from here on a rank that does not is missed.
  void expect_ranks();

  /// Waits until all ranks have said goodbye, or the job has failed and they are gone or not waited for any more.
  [[nodiscard]] LaunchResult wait();

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] JobWatchSettings watch_settings() const;
  [[nodiscard]] JobWatchEvents watch_events();
  void serve();
  void joined(int rank, const Hello& hello);
  void came_with_other_job(const Hello& hello, const std::string& why);
  void take(int rank, std::string_view kind, std::string_view bytes);
  void gone(int rank);
  void stop_if_asked();
  void remind(Clock::time_point now);
  void stop_early(int signal);
  void finish_if_done();
  void finish();
  void give_up_unless_waited_for();
  [[nodiscard]] LaunchResult result() const;
  template <class Call>
  [[nodiscard]] std::string call_back(const Call& call);
  void log(const std::string& line);
  void notice(const std::string& line);

  const HostSettings settings_;
  boost::asio::io_context io_;
  Clock::time_point next_reminder_ = Clock::time_point::max();
  int stopped_early_ = 0;  ///< by this signal
  JobWatch watch_;

  std::mutex mutex_;  ///< of the next four
  bool waited_for_ = false;
  bool given_up_ = false;  ///< to `last_resort`: wait() returns no more
  bool finished_ = false;
  LaunchResult result_;
  std::condition_variable changed_;
  std::mutex callback_mutex_;  ///< held while a callback runs
  bool result_taken_ = false;  ///< there are no callbacks any more
  std::thread thread_;
};

}  // namespace shardrun::launch
