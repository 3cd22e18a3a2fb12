#include "core/launch/heartbeats.h"

#include <utility>

#include "core/launch/status.h"

namespace shardrun::launch {

Heartbeats::Heartbeats(boost::asio::io_context& io, std::chrono::milliseconds interval,
                       std::chrono::milliseconds silence, std::function<void()> send,
                       std::function<void(Clock::duration)> on_silence)
    : timer_(io), interval_(interval), silence_(silence), send_(std::move(send)), on_silence_(std::move(on_silence)) {}

void Heartbeats::start() {
  is_beating_ = true;
  last_beat_ = heard_ = Clock::now();
  beat();
}

void Heartbeats::beat() {
  send_();
  timer_.expires_after(interval_);
  timer_.async_wait([this](const boost::system::error_code& cancelled) {
    if (!cancelled && is_beating_) {
      check_silence();
      beat();
    }
  });
}

/// Time in which this process was suspended does not count as silence.
void Heartbeats::check_silence() {
  const Clock::time_point now = Clock::now();
  heard_ += time_held_up(now - std::exchange(last_beat_, now), interval_);
  if (silence_.count() > 0 && now - heard_ > silence_) {
    on_silence_(now - heard_);
  }
}

}  // namespace shardrun::launch
