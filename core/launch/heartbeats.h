#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>

namespace shardrun::launch {

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

}  // namespace shardrun::launch
