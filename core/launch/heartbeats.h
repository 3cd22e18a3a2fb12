#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>

namespace shardrun::launch {

/// Sends heartbeats over a connection, and notices when the other end has not answered for too long. Belongs to the
/// thread of `io`.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  /// `silence`: how long the other end may be silent; 0: for ever. `on_silence` is told how long it has been, with
  /// every heartbeat from then on.
  Heartbeats(boost::asio::io_context& io, std::chrono::milliseconds interval, std::chrono::milliseconds silence,
             std::function<void()> send, std::function<void(Clock::duration silent)> on_silence);

  /// The first heartbeat goes at once.
  void start();
  void stop() { is_beating_ = false; }
  /// The other end has said something.
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
  Clock::time_point heard_;      ///< of the other end
  Clock::time_point last_beat_;  ///< of this one
};

}  // namespace shardrun::launch
