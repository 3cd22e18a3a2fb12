#include "core/metrics/ticker.h"

#include <fmt/format.h>
#include <pthread.h>

#include <csignal>
#include <exception>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace shardrun::metrics {

std::thread thread_without_signals(std::string_view purpose, std::function<void()> run) {
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  sigdelset(&blocked, SIGPIPE);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  try {
    std::thread thread(std::move(run));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorCode::io, fmt::format("cannot start the thread that {}: {}", purpose, error.what()));
  }
}

Ticker::Ticker(std::chrono::milliseconds interval, std::function<void()> tick) {
  thread_ = thread_without_signals("shows progress", [this, interval, tick = std::move(tick)] {
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
  });
}

Ticker::~Ticker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

}  // namespace shardrun::metrics
