#include "core/screen/ticker.h"

#include <csignal>
#include <exception>
#include <utility>

#include "core/base/signal_free_thread.h"

namespace shardrun::screen {

Ticker::Ticker(std::chrono::milliseconds interval, std::function<void()> tick) {
  const auto run = [this, interval, tick = std::move(tick)] {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, interval, [this] { return ending_; })) {
      lock.unlock();
      try {
        tick();
      } catch (const std::exception&) {
        return;
      }
      lock.lock();
    }
  };
  // SIGPIPE stays unblocked, because it is delivered to the thread that writes.
  thread_ = thread_without_signals("the thread that shows progress", run, SIGPIPE);
}

Ticker::~Ticker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

}  // namespace shardrun::screen
