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

/// Callbacks are called on the host's own thread, one at a time, and may be empty. None is called after wait() has
/// returned. If on_message throws, the job fails.
struct HostSettings {
  std::string address;  ///< numeric address of this machine to listen at
  std::uint16_t port = 0;
  int ranks = 1;
  Token token = {};
  std::string job;  ///< ranks must be given the same text: see Rank
  std::string run;  ///< name of this run

  std::chrono::milliseconds heartbeat_timeout{10000};  ///< a rank that is silent for longer ends the job; 0: no limit
  std::chrono::milliseconds join_timeout{300000};      ///< from expect_ranks() to a rank's hello
  std::chrono::milliseconds first_reminder{5000};      ///< from expect_ranks() to the first message about missing ranks
  std::chrono::milliseconds reminder{30000};           ///< between two such messages
  std::chrono::milliseconds report_time{500};          ///< see LaunchSettings
  std::chrono::milliseconds grace{2000};               ///< from an abort until the host stops waiting for ranks
  std::chrono::milliseconds stranger_timeout{5000};    ///< from connecting to a correct hello

  /// The signal that asked this process to stop, or 0; it ends a job that has not begun.
  std::function<int()> stop_signal;
  std::function<bool()> has_begun;  ///< see LaunchSettings; empty: always true
  std::function<void(const RankMessage& message)> on_message;
  std::function<void(std::string_view line)> on_log;
  std::function<void(std::string_view line)> on_notice;
  /// Called `grace` after an abort if this process's own rank has not called wait() by then. It must end the process;
  /// if it returns, the host ends the process with exit code 1.
  std::function<void(const LaunchResult& result)> last_resort;
};

/// The launcher's work for ranks that another launcher started. It belongs to rank 0's process and watches the job on
/// its own thread. It sees connections end, but not processes.
class StoreHost {
 public:
  /// Listens, but answers nobody yet. Throws Error{io}, or Error{usage} if the address is taken, is not this host's, or
  /// stands for every address.
  explicit StoreHost(HostSettings settings);
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;
  ~StoreHost();  ///< closes all connections; ranks that have said goodbye wait for that

  [[nodiscard]] std::uint16_t port() const { return watch_.store().port(); }

  /// Starts to answer ranks and to call callbacks. Call it once.
  void start();

  /// Call it when the other ranks know the address. Starts their `join_timeout`.
  void expect_ranks();

  /// Waits until all ranks have said goodbye. After a failure, waits until all are gone or `grace` has passed, so that
  /// ranks that have not joined yet are told.
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
  int stopped_early_ = 0;  ///< the signal that stopped the job before it began, or 0
  JobWatch watch_;

  std::mutex mutex_;  ///< guards the next four
  bool waited_for_ = false;
  bool given_up_ = false;  ///< `last_resort` is called: wait() then never returns
  bool finished_ = false;
  LaunchResult result_;
  std::condition_variable changed_;
  std::mutex callback_mutex_;  ///< held while a callback runs
  bool result_taken_ = false;  ///< wait() has returned: no callback is called any more
  std::thread thread_;
};

}  // namespace shardrun::launch
