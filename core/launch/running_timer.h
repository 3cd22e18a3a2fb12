#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>

namespace shardrun::launch {

/// A timer that calls back once. Time in which this process was suspended does not count. Used only on the thread of
/// its io_context; may be destroyed there at any time, even in its own callback.
class RunningTimer {
 public:
  explicit RunningTimer(boost::asio::io_context& io) : timer_(io) {}

  /// Starts the timer. Replaces an earlier start.
  void start(std::chrono::nanoseconds after, std::function<void()> call);
  void cancel();

 private:
  void wait();

  boost::asio::steady_timer timer_;
  std::chrono::nanoseconds left_{};
  std::function<void()> call_;
  /// Is destroyed with the timer. A queued wait can outlive the timer, and checks that.
  std::shared_ptr<const bool> lives_ = std::make_shared<const bool>(true);
};

}  // namespace shardrun::launch
