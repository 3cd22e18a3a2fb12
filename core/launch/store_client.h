#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/launch/connection.h"
#include "core/launch/protocol.h"
#include "core/launch/running_timer.h"

namespace shardrun::launch {

struct StoreConnectorSettings {
  std::string address;  ///< numeric; or several, separated by commas, which are tried in turn
  std::uint16_t port = 0;
  Token token = {};                                ///< the secret that both ends prove to know; it is not sent
  std::chrono::milliseconds proof_timeout{10000};  ///< from connecting to the end of the handshake
  /// Gives up after this many wrong answers instead of a proof, but not before `shortest_of_unproved` has passed since
  /// the first of them. 0: never gives up.
  int most_unproved = 0;
  std::chrono::milliseconds shortest_of_unproved{0};
};

/// All callbacks must be set.
struct StoreConnectorEvents {
  /// Called when the listener has proved that it knows the token. A callback of the connection calls it, so it must not
  /// destroy the connection. `own_address`: the address of this end of the connection.
  std::function<void(std::shared_ptr<FrameConnection> connection, const std::string& own_address)> proved;
  std::function<void(const std::string& why)> failed;   ///< an attempt failed; another follows
  std::function<void(const std::string& why)> refused;  ///< the last attempt failed; no other follows
};

/// Connects to the store of a job. Tries until a listener proves that it knows the token. Used only on the thread of
/// `io`.
class StoreConnector {
 public:
  StoreConnector(boost::asio::io_context& io, StoreConnectorSettings settings, StoreConnectorEvents events);
  StoreConnector(const StoreConnector&) = delete;
  StoreConnector& operator=(const StoreConnector&) = delete;
  ~StoreConnector();

  void connect();
  /// Connects again after a pause. `why`: why the last connection failed.
  void connect_later(const std::string& why);

 private:
  void pause_before_connecting(const std::string& why, std::chrono::milliseconds longest_pause);
  void shake_hands(std::shared_ptr<FrameConnection> connection);
  void not_proved(const std::string& why);
  [[nodiscard]] std::string unproved(const std::string& why) const;

  const StoreConnectorSettings settings_;
  const std::vector<std::string> addresses_;
  const StoreConnectorEvents events_;
  boost::asio::io_context& io_;
  const TlsContext tls_;
  boost::asio::steady_timer timer_;  ///< until the next attempt, or until the proof is late
  std::size_t attempts_ = 0;
  std::chrono::milliseconds pause_{20};
  std::shared_ptr<FrameConnection> connection_;  ///< until the listener has proved itself
  std::string own_address_;                      ///< of `connection_`
  int unproved_ = 0;                             ///< number of answers that were not a proof
  std::chrono::steady_clock::time_point first_unproved_;
};

/// Sends heartbeats over a connection, and notices if the peer is silent for too long. Used only on the thread of `io`.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  /// `silence`: how long the peer may be silent; 0: forever. Once it has been silent for longer, `on_silence` is called
  /// at every heartbeat with the duration of the silence.
  Heartbeats(boost::asio::io_context& io, std::chrono::milliseconds interval, std::chrono::milliseconds silence,
             std::function<void()> send, std::function<void(Clock::duration silent)> on_silence);

  /// Sends the first heartbeat at once.
  void start();
  void stop() { is_beating_ = false; }
  /// Call it when the peer has sent something.
  void hear() { heard_ = Clock::now(); }

 private:
  void beat();
  void check_silence();

  boost::asio::steady_timer timer_;
  const std::chrono::milliseconds interval_;
  const std::chrono::milliseconds silence_;
  const std::function<void()> send_;
  const std::function<void(Clock::duration)> on_silence_;
  bool is_beating_ = false;
  Clock::time_point heard_;      ///< when the peer was last heard from
  Clock::time_point last_beat_;  ///< when this end last sent a heartbeat
};

struct StoreClientSettings {
  StoreConnectorSettings store;
  std::string listener = "the launcher";  ///< what the store's process is called in messages
  Hello hello;
  std::string job;  ///< the job's text; the hello frame has its hash
  std::chrono::milliseconds heartbeat{1000};
  std::chrono::milliseconds silence{0};         ///< see RankContext; the store's process must answer heartbeats
  std::chrono::milliseconds grace{0};           ///< see RankContext
  std::chrono::milliseconds first_reminder{0};  ///< how long to wait for a welcome before the first message about it;
                                                ///< 0: no message
};

/// The rank's end of its control connection. Its own thread reads, writes and sends heartbeats while the rank computes.
/// The functions have the contracts of Rank, which hides this class.
class StoreClient {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  StoreClient(StoreClientSettings settings, Deadline deadline);
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient();

  void set(std::string_view key, std::string_view value);
  [[nodiscard]] std::string get(std::string_view key, Deadline deadline);
  void message(std::string_view kind, std::string_view bytes);
  bool fail(FailureKind kind, std::string_view text, std::optional<int> awaited, Deadline deadline);
  void goodbye(Deadline deadline);
  void await_end(Deadline deadline) noexcept;
  [[nodiscard]] std::string own_address() const;
  void pause();

  /// The callback must not throw.
  void on_abort(std::function<void(const std::string& reason)> callback);
  [[nodiscard]] const std::atomic<bool>& aborted() const noexcept { return aborted_; }
  [[nodiscard]] std::string abort_reason() const;
  [[nodiscard]] bool pause_asked() const noexcept { return pause_asked_.load(std::memory_order_relaxed); }
  [[nodiscard]] int stop_signal() const noexcept { return stop_signal_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint64_t no_request = UINT64_MAX;
  /// REQUIRES: mutex_ is held.
  std::uint64_t keep_request(std::string_view key, std::uint64_t request);
  // The following run on the caller's thread.
  void start_thread();
  void end_thread();
  void await_welcome(Deadline deadline);
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, Deadline deadline, const Condition& met);
  void post(std::string frame);
  [[nodiscard]] Error aborted_error(std::string_view attempted) const;

  // The following run on the connection's thread (store_client_events.cpp).
  [[nodiscard]] StoreConnectorEvents connector_events();
  void join(std::shared_ptr<FrameConnection> connection, const std::string& own_address);
  void handle(FrameType type, std::string_view payload);
  void handle_answer(FrameType type, PayloadReader& reader);
  void refuse(const std::string& why);
  void on_silence(Heartbeats::Clock::duration silent);
  void lost(const std::string& why);
  void broke(const std::string& why);
  void remind_after(std::chrono::milliseconds pause);
  void end_after_grace(const std::string& reason);
  void abort(const std::string& reason);

  StoreClientSettings settings_;
  boost::asio::io_context io_;
  StoreConnector connector_;
  std::shared_ptr<FrameConnection> connection_;  ///< to a peer that has proved that it knows the token
  Heartbeats heartbeats_;
  RunningTimer grace_timer_;
  boost::asio::steady_timer reminder_timer_;
  std::atomic<bool> aborted_ = false;
  std::atomic<int> stop_signal_ = 0;
  std::atomic<bool> pause_asked_ = false;
  std::atomic<std::size_t> unsent_bytes_ = 0;

  mutable std::mutex mutex_;  ///< guards all members down to `changed_`
  bool welcome_ = false;
  std::string own_address_;             ///< of this end of the connection
  std::string trouble_;                 ///< why the last attempt to join failed
  std::optional<std::string> refused_;  ///< why the launcher refused this rank finally
  std::optional<std::string> abort_reason_;
  bool connection_lost_ = false;
  bool resumed_ = false;
  bool failure_noted_ = false;
  bool ended_by_listener_ = false;  ///< the listener has aborted the job, so it knows that the job has failed
  bool farewell_ = false;
  std::uint64_t next_request_ = 0;
  std::map<std::uint64_t, std::optional<std::string>> requests_;  ///< open requests; a value is set once it has arrived
  /// Requests for which nobody waits any more, by their keys. Their answers may still arrive.
  std::map<std::string, std::uint64_t, std::less<>> unanswered_;
  std::condition_variable changed_;

  std::mutex callback_mutex_;  ///< held while the callback runs
  std::function<void(const std::string&)> callback_;

  std::thread thread_;
};

}  // namespace shardrun::launch
