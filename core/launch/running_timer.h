#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>

namespace shardrun::launch {

/// Calls back once after a time in which this process ran: one in which it was suspended does not count. Belongs to the
/// thread of its io_context, and may be destroyed there at any time, in its own callback too.
class RunningTimer {
 public:
  explicit RunningTimer(boost::asio::io_context& io) : timer_(io) {}

  /// Replaces what was started before.
  void start(std::chrono::nanoseconds after, std::function<void()> call);
  void cancel();

 private:
  void wait();

  boost::asio::steady_timer timer_;
  std::chrono::nanoseconds left_{};
  std::function<void()> call_;
  std::shared_ptr<const bool> lives_ = std::make_shared<const bool>(true);  ///< a wait may outlive this in its queue
};

}  // namespace shardrun::launch
