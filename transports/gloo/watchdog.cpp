#include "transports/gloo/watchdog.h"

#include <algorithm>
#include <chrono>

#include "transports/gloo/signals.h"

namespace shardrun::gloo_transport {
namespace {

constexpr std::chrono::milliseconds period(20);

}  // namespace

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Watchdog::watch(Watched& watched) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    const NoSigpipe no_sigpipe;
    thread_ = std::thread([this] { check(); });
  }
  watched_.push_back(&watched);
  changed_.notify_all();
}

void Watchdog::release(Watched& watched) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(watched_, &watched);
}

void Watchdog::check() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const bool is_end = !watched_.empty() && host_.aborted();
    for (Watched* const watched : watched_) {
      if (is_end) {
        watched->on_job_end();
      } else {
        watched->check();
      }
    }
    if (watched_.empty()) {
      changed_.wait(lock, [&] { return stopping_ || !watched_.empty(); });
    } else {
      changed_.wait_for(lock, period, [&] { return stopping_; });
    }
  }
}

}  // namespace shardrun::gloo_transport
